"""Pure functions on arrays: no I/O, no plotting.

Uncertainty is higher where a query is less certain; success is one boolean a query (or a pair). What cannot
be defined (one class only, say) is NaN, what cannot be meant (NaN scores, other lengths) is a
``KappaPlaceError``.
"""
