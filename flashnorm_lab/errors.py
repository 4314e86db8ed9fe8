"""The one exception that a user of the lab is meant to read."""


class LabError(Exception):
    """Bad input or a missing piece, told in one line: the value at fault, what was expected, what to do."""
