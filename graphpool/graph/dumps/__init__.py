"""Graphs in files: the format of oneDNN Graph's dumps, and benchdnn's ways to change them.

json.py          reads and writes dumps
knobs.py         benchdnn's knobs: short texts that say what to change of a graph from a file
apply_knobs.py   changes the ops of a file as knobs say, with all that follows inferred anew
"""
