"""Toys of the family in `wrappers/toy.py` that have a module of their own."""
