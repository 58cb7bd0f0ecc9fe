"""The one exception that users are meant to see."""


class KappaPlaceError(Exception):
    """Bad input or an unusable environment, told in one clear sentence: what, where, what to do.

    The command line prints the sentence alone and exits with code 2; library users catch this class.
    """
