"""The models of a repository: listed in one file, built when out of date, checked before every commit.

Building one model is in `pipeline`.
"""
