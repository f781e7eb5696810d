"""Normalisations, softmax, reductions.

norm.py         layer, RMS and group norm, batch statistics: norm.c, channel_norm.c, gp_moments.h
fold.py         a BatchNorm of constants as scaled weights and a bias
softmax.py      softmax and log-softmax
couple.py       probabilities of classes from those of their pairs
reduce.py       reductions: reduce.c; walks along one axis: scan.c; gp_columns.h: what lies with gaps
"""
