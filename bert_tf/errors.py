"""The one exception that a user's own mistake raises."""


class UserError(Exception):
    """A mistake of the user's: one line that says what is wrong, where (`file:line`) and what to do.

    The command line prints the line and exits with status 2, never with a traceback; from Python it is
    an ordinary exception.
    """
