"""What the scripts that compare firn with the real llama.cpp share: running firn, counting checks, remembering figures."""
import json
import os
import subprocess

import numpy as np


def nmse(x, reference):
    """Normalized mean squared error, in double; NaN anywhere gives NaN."""
    x, reference = np.asarray(x, np.float64), np.asarray(reference, np.float64)
    return float(((x - reference) ** 2).sum() / (reference ** 2).sum())


def scale_tensors(path, chosen, factor):
    """Multiplies the F32 tensors of a GGUF file whose names match, in place."""
    with open(path, "rb") as f:
        data = f.read()
    at = 4
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}    # bytes of a key's value, by its type

    def number(n=4):
        nonlocal at
        at += n
        return int.from_bytes(data[at - n:at], "little")

    def text():
        nonlocal at
        n = number(8)
        at += n
        return data[at - n:at]

    def skip(kind):
        nonlocal at
        if kind == 8:
            text()
        elif kind == 9:
            kind, n = number(), number(8)
            for _ in range(n):
                skip(kind)
        else:
            at += sizes[kind]

    number()
    n_tensors, n_keys = number(8), number(8)
    for _ in range(n_keys):
        text()
        skip(number())
    found = []
    for _ in range(n_tensors):
        name, ne = text().decode(), [number(8) for _ in range(number())]
        kind, offset = number(), number(8)
        if chosen.fullmatch(name):
            assert kind == 0, f"{name} is not F32"
            found.append((offset, int(np.prod(ne))))
    begin = (at + 31) // 32 * 32
    with open(path, "r+b") as f:
        for offset, n in found:
            values = np.frombuffer(data, "<f4", n, begin + offset) * np.float32(factor)
            f.seek(begin + offset)
            f.write(values.astype("<f4").tobytes())
    return len(found)


class Firn:
    def __init__(self, program):
        self.program = program

    def __call__(self, *args):
        done = subprocess.run([self.program, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
            raise RuntimeError(f"firn {' '.join(map(str, args))}: {last[0]}")
        return done.stdout

    def logits(self, model, sequences, folder, adapter=None):
        """A list of arrays [n_tok][n_vocab], one for each sequence."""
        tokens, out = f"{folder}/tokens.json", f"{folder}/logits.f32"
        with open(tokens, "w") as f:
            json.dump(sequences, f)
        self("logits", model, "--tokens", tokens, "--output", out, "--threads", 1, *(["--adapter", adapter] if adapter else []))
        flat = np.fromfile(out, "<f4")
        os.remove(out)
        lengths = [len(s) for s in sequences]
        rows = flat.reshape(sum(lengths), -1)
        return np.split(rows, np.cumsum(lengths)[:-1])


class Checks:
    """Figures against bounds. Every one is printed and remembered; a NaN fails."""

    def __init__(self):
        self.passed = self.failed = 0
        self.records = []

    def at_most(self, what, value, bound, **more):
        good = value <= bound
        self._count(good)
        print(f"{'ok  ' if good else 'FAIL'} {what:52} {value:.2e} (bound {bound:.0e})", flush=True)
        self.records.append({"what": what, "value": value, "bound": bound, "passed": bool(good), **more})

    def that(self, what, good, why=""):
        self._count(good)
        print(f"{'ok  ' if good else 'FAIL'} {what}{'' if good else ': ' + why}", flush=True)

    def _count(self, good):
        self.passed, self.failed = self.passed + bool(good), self.failed + (not good)

    def finish(self, path, **more):
        """Writes the figures as JSON, prints the totals, returns the exit status."""
        with open(path, "w") as f:
            json.dump({**more, "records": self.records}, f, indent=1)
        print(f"{self.passed} passed, {self.failed} failed")
        return int(self.failed > 0)
