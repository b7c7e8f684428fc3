"""What a shim asks the engine of rank 0 before it believes that the engine serves.

Room: model. The engine describes it, the shim does it; a rank without a probe is ready as soon as its process is alive.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Probe:
    """First `path` must answer 200, then `models_path` must list `served_name`, then a completion of one token must succeed.

    After that only `path` is asked, every `interval_s`. An empty path or name leaves that step out.
    """

    path: str = "/health"
    models_path: str = "/v1/models"
    served_name: str = ""
    canary: bool = True                    # false for models that complete nothing, such as embeddings
    canary_path: str = "/v1/completions"   # or /v1/chat/completions, which is then asked in its own form
    timeout_s: float = 5.0
    canary_timeout_s: float = 120.0        # the first token may pay for a warm-up
    interval_s: float = 1.0
