"""A trainer and an engine that share only a store. Here both are in one process; they need not
know each other.

    publish_and_follow.py [URL]      /tmp/stream, s3://bucket/run-7, ...
"""
import argparse
import array
import random
import sys

import deltawire

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("url", nargs="?", default="mem:example")
url = parser.parse_args().url
# Any buffer works: arrays of NumPy, tensors of PyTorch, arrays of the standard library.
trained = {"model.weight": array.array("f", [random.random() for _ in range(100_000)])}
served = {"model.weight": array.array("f", bytes(400_000))}

with deltawire.Publisher(url, trained) as trainer:
    with deltawire.Follower(url, tensors=served) as engine:
        for step in range(1, 4):
            weights = trained["model.weight"]
            for i in range(step, len(weights), 100):
                weights[i] *= 1.0001
            ticket = trainer.publish(step=step)  # returns at once; the upload is in the background
            # The next step may begin when trainer.captured(ticket) is true.
            report = trainer.wait(ticket)
            print(f"trainer: step {step} is version {report.version}, "
                  f"{report.n_changed} changes in {report.n_bytes} bytes")
            while engine.version != report.version:
                engine.stage(report.version)  # the engine keeps serving
                engine.apply()  # pause it for this: stores, at memory speed
                engine.finish()
            print(f"engine:  serves version {engine.version}")

same = trained["model.weight"] == served["model.weight"]
print(f"the engine's weights are {'exactly' if same else 'NOT'} the trainer's")
sys.exit(not same)
