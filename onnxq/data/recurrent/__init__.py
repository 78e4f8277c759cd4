"""States of recurrent models: what a model makes of one step is what it reads at the next.

Which steps there are is said elsewhere: in files of arrays, recordings or texts.
"""
