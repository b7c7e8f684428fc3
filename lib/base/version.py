"""The one place that names the version of this build.

Room: base.
"""

VERSION = "0.1.0"
