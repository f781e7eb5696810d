"""Ensembles of decision trees.

tree.py     how they are packed, and how rows are scored; gp_trees.h is the C side
"""
