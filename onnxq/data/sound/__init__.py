"""Recordings as samples: finding and decoding them, their rate, and the windows that a model takes.

Spectra and other features are no waveforms: a model that takes those needs arrays.
"""
