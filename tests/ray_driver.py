"""Run by test_serve_ray.py: the gateway on a Ray of its own, at the port of the first argument, until standard input ends."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from relaygen.serve_ray import app

if __name__ == "__main__":
    ray: Any = importlib.import_module("ray")  # its own types say little
    serve: Any = importlib.import_module("ray.serve")
    for attempt in range(3):
        try:
            ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80_000_000, namespace="serve")
            break
        except Exception:  # it gives its own start 30 s, which on a busy machine may not do
            if attempt == 2:
                raise
            ray.shutdown()
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    built: Any = app({"max_replicas": "2", "streams": "2", "cpus": "0.5"})
    built._bound_deployment._deployment_config.autoscaling_config.upscale_delay_s = 1  # else 30
    serve.run(built)
    print("ready", flush=True)
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()
