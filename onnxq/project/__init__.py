"""The models of a repository: listed in one file, built when out of date, checked before every commit."""
