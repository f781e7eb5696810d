"""What every operation accepts and what shape it gives, as data.

    onednn.py         the table: one row for each of oneDNN Graph's 88 kinds
    extension.py      the table of further kinds, as ONNX defines them
    model.py          Port, Attribute, OpSchema: how a row completes attributes, validates an op, infers shapes
    rules_basic.py    shape rules of element-wise, matrix, reduction and data-movement kinds
    rules_data.py     shape rules of the extensions: parts, copies, access by index, scans
    rules_spatial.py  shape rules of convolution, pooling and interpolation
    rules_recurrent.py  shape rule of recurrent layers
    rules_norm.py     shape rules of normalisation and softmax
    query.py          what a rule is asked (shapes, constant values) and how an op's error is worded

``graph/checks.py`` holds the type and attribute checks that no column of a row can say, ``graph/shapes.py`` the
geometry that lowering needs too, and ``graph/schema.py`` joins the tables: import from there. A table of further
kinds is one more module with a ``TABLE``, named in ``schema.TABLES``.
"""
