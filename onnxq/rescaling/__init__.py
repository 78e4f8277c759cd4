"""Changes of the float model's numbers: cross-layer equalization, SmoothQuant, shifting, outlier split, mask limits.

Which of them to keep is decided in `search`.
"""
