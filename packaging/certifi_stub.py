"""Stands in for certifi, which `requests` imports to know whom to trust by default: llmgw trusts only the authority it is told.

Room: packaging; travels in every .pyz as `certifi`. The path exists nowhere on purpose: a connection that forgot to name its
authority fails before anything is sent, and the error shows this name.
"""


def where() -> str:
    """A bundle that is not there."""
    return "/llmgw-trusts-no-authority-by-default"


def contents() -> str:
    """No certificates."""
    return ""
