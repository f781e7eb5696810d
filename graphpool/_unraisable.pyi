def report_unraisable(error: BaseException, where: object) -> None:
    """Hand an error to `sys.unraisablehook`, as the interpreter does with those of finalisers."""
