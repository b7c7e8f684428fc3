"""What the sim engine counts, told with vLLM's metric names so that whoever reads an engine's metrics can be tested.

Room: engines. Pure: the clock is the caller's.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)


class Histogram:
    """Seconds, counted in buckets."""

    def __init__(self) -> None:
        self._counts, self._sum = [0] * (len(_BUCKETS) + 1), 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(_BUCKETS, seconds)] += 1
        self._sum += seconds

    def render(self, name: str, labels: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*map(str, _BUCKETS), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
        yield f"{name}_sum{{{labels}}} {self._sum:.6f}"
        yield f"{name}_count{{{labels}}} {total}"


class Metrics:
    """The counters of one process. `capacity` is how many tokens its cache would hold."""

    def __init__(self, capacity: int) -> None:
        self.running = self.waiting = 0
        self.prompt_tokens = self.generation_tokens = self.cached = self.begun = 0
        self.finished: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0})
        self.first_token, self.whole_request = Histogram(), Histogram()
        self._capacity = capacity

    def render(self, names: Sequence[str]) -> str:
        """The text of /metrics."""
        labels = f'engine="0",model_name="{names[0]}"'
        lines = [
            *_metric("vllm:num_requests_running", "gauge", labels, self.running),
            *_metric("vllm:num_requests_waiting", "gauge", labels, self.waiting),
            *_metric("vllm:kv_cache_usage_perc", "gauge", labels, min(1.0, self.cached / self._capacity)),
            *_metric("vllm:prompt_tokens_total", "counter", labels, self.prompt_tokens),
            *_metric("vllm:generation_tokens_total", "counter", labels, self.generation_tokens),
            "# TYPE vllm:request_success_total counter",
            *(f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {count}'
              for reason, count in sorted(self.finished.items())),
            "# TYPE vllm:time_to_first_token_seconds histogram",
            *self.first_token.render("vllm:time_to_first_token_seconds", labels),
            "# TYPE vllm:e2e_request_latency_seconds histogram",
            *self.whole_request.render("vllm:e2e_request_latency_seconds", labels)]
        return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, labels: str, value: float) -> tuple[str, str]:
    return f"# TYPE {name} {kind}", f"{name}{{{labels}}} {value:g}" if isinstance(value, float) else f"{name}{{{labels}}} {value}"
