"""Recurrent layers.

recurrent.py    LSTM, GRU and RNN over all steps of a sequence, weights of the states in panels: recurrent.c
"""
