"""One custom operator from registration to a proved compiled run, on real data.

Defines a gated activation as a custom operator (schema, fake rule, gradient, a second kernel), checks its contract,
trains a small classifier on scikit-learn's handwritten digits with it, eagerly and compiled by TVM, and prints which
executor served every region, forward and backward.

    python examples/quickstart.py [--steps N] [--backend NAME]
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from sklearn.datasets import load_digits

import tensorplay as tp
from tensorplay import Tensor, library

# ---- the operator -------------------------------------------------------------------------------------------------


@library.custom_op("demo::gated", mutates_args=())
def gated(x: Tensor, slope: float = 1.0) -> Tensor:
    """Gated activation ``x * sigmoid(slope * x)``; any shape and dtype."""
    return tp.mul(x, tp.sigmoid(tp.mul(x, slope)))


@gated.register_fake
def gated_fake(x, slope=1.0):
    """Shape of ``x``; its dtype joined by that of the slope, so that integers become float32 as in the body."""
    return tp.empty_like(x * slope)


def save_inputs(ctx, inputs, output):
    x, ctx.slope = inputs
    ctx.save_for_backward(x)


def gated_backward(ctx, grad):
    """d/dx x*s(ax) = s + a*x*s*(1-s), with s = sigmoid(a*x)."""
    (x,) = ctx.saved_tensors
    s = tp.sigmoid(tp.mul(x, ctx.slope))
    return tp.mul(grad, s + ctx.slope * x * s * (1.0 - s)), None


gated.register_autograd(gated_backward, setup_context=save_inputs)


def plain_float(x, slope=1.0):
    return x.dtype in (tp.float32, tp.float64)


@gated.register_kernel("cpu", name="numpy", when=plain_float, layout={"x": "contiguous"})
def gated_numpy(x, slope=1.0):
    """A second kernel, over the same memory with NumPy: float32 and float64, contiguous."""
    a = x.detach().numpy()
    # exp overflows to infinity where the sigmoid is 0: the quotient is right, and NumPy's warning would mislead.
    with np.errstate(over="ignore", invalid="ignore"):
        return tp.from_numpy(np.asarray(a / (1.0 + np.exp(-slope * a)), dtype=a.dtype))


# ---- the classifier -----------------------------------------------------------------------------------------------

HIDDEN = 64


@dataclass
class Classifier:
    """64 pixels -> two hidden layers -> 10 digits."""

    activation: Callable[[Tensor], Tensor]
    seed: int = 0
    parameters: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        sizes = [64, HIDDEN, HIDDEN, 10]
        self.parameters = []
        for fan_in, fan_out in zip(sizes, sizes[1:], strict=False):
            weight = rng.normal(0.0, np.sqrt(2.0 / fan_in), (fan_in, fan_out)).astype(np.float32)
            self.parameters.append(tp.tensor(weight, requires_grad=True))
            self.parameters.append(tp.zeros((fan_out,)))
            self.parameters[-1].requires_grad = True

    def logits(self, x: Tensor) -> Tensor:
        w1, b1, w2, b2, w3, b3 = self.parameters
        h = self.activation(x @ w1 + b1)
        h = self.activation(h @ w2 + b2)
        return h @ w3 + b3

    def loss(self, x: Tensor, onehot: Tensor) -> Tensor:
        """Mean cross entropy."""
        return tp.mean(tp.sum(tp.neg(onehot * tp.log_softmax(self.logits(x), -1)), -1))


def silu_chain(x: Tensor) -> Tensor:
    """The same activation from built-in operators: a pointwise chain that a compiler can fuse."""
    return x * tp.sigmoid(x)


# ---- training -----------------------------------------------------------------------------------------------------


@dataclass
class Digits:
    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def load() -> Digits:
    """1797 real 8x8 digits; the last fifth is held out after a fixed shuffle."""
    data = load_digits()
    order = np.random.default_rng(1).permutation(len(data.target))
    x = (data.data[order] / 16.0 - 0.5).astype(np.float32)
    y = data.target[order]
    cut = len(y) * 4 // 5
    return Digits(x[:cut], y[:cut], x[cut:], y[cut:])


@dataclass
class Outcome:
    losses: list[float]
    accuracy: float
    milliseconds: float


def progress(title: str, done: int, total: int, loss: float) -> None:
    width = 30
    filled = width * done // total
    bar = "#" * filled + "." * (width - filled)
    line = f"{title:<22} [{bar}] {done}/{total}  loss {loss:.4f}"
    if done == total:
        print(f"\r{line}" if sys.stdout.isatty() else line, flush=True)
    elif sys.stdout.isatty():
        print(f"\r{line}", end="", flush=True)


def train(
    title: str, model: Classifier, loss_fn: Callable[[Tensor, Tensor], Tensor], data: Digits, steps: int
) -> Outcome:
    """Plain SGD with momentum over batches of 128."""
    batch, rate, momentum = 128, 0.2, 0.9
    rng = np.random.default_rng(2)
    eye = np.eye(10, dtype=np.float32)
    velocity = [tp.zeros_like(p) for p in model.parameters]
    losses: list[float] = []
    seconds: list[float] = []
    for step in range(1, steps + 1):
        rows = rng.integers(0, len(data.train_y), batch)
        x, onehot = tp.tensor(data.train_x[rows]), tp.tensor(eye[data.train_y[rows]])
        start = time.perf_counter()
        loss = loss_fn(x, onehot)
        loss.backward()
        with tp.no_grad():
            for p, v in zip(model.parameters, velocity, strict=True):
                v.mul_(momentum)
                v.add_(p.grad)
                p.add_(v * -rate)
                p.grad = None
        seconds.append(time.perf_counter() - start)
        losses.append(loss.item())
        if step % max(1, steps // 50) == 0 or step == steps:
            progress(title, step, steps, losses[-1])
    with tp.no_grad():
        guess = tp.argmax(model.logits(tp.tensor(data.test_x)), -1).numpy()
    return Outcome(losses, float((guess == data.test_y).mean()), 1e3 * float(np.median(seconds)))


def section(title: str) -> None:
    print(f"\n== {title} ".ljust(100, "="))


def positive(text: str) -> int:
    """A number of steps; the error says what it must be."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def failures(outcomes: dict[str, Outcome], drift: float) -> list[str]:
    """What did not come out as it must, in words; nothing after a good run."""
    failed = [
        f"{name}: accuracy {100 * outcome.accuracy:.1f} % after {len(outcome.losses)} steps, 95 % is wanted"
        f"{'; --steps 120 is enough' if len(outcome.losses) < 120 else ''}"
        for name, outcome in outcomes.items()
        if outcome.accuracy < 0.95
    ]
    if not drift < 1e-3:
        failed.append(
            f"eager and compiled disagree: the largest loss difference is {drift:.2e}, 1e-03 is allowed"
        )
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=positive, default=400, help="training steps of each run, 1 or more")
    parser.add_argument(
        "--backend", default="tvm", choices=tp.backends.names(), help="who compiles the training step"
    )
    options = parser.parse_args()

    section("the operator")
    print(repr(gated))

    section("its contract: values, graph, executor")
    report = tp.verify(gated, (tp.tensor(np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)), 1.0))
    print(report.text())
    report.raise_if_failed()

    section("captured graph")
    print(tp.graph.capture(lambda x: gated(x * 2.0, 1.5) + 1.0, tp.ones((2, 3))))

    section("training on handwritten digits")
    data = load()
    capability = tp.backends.capabilities()[options.backend]
    print(capability)
    custom = Classifier(gated)
    eager = train("eager, custom op", custom, custom.loss, data, options.steps)
    chain = Classifier(silu_chain)
    plain = train("eager, op chain", chain, chain.loss, data, options.steps)
    chain = Classifier(silu_chain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = tp.compile(chain.loss, backend=options.backend, on_fallback="record")
        fast = train(f"compiled, {options.backend}", chain, compiled, data, options.steps)

    section("who ran")
    print(compiled.last_run)
    print()
    drift = float(np.max(np.abs(np.array(plain.losses) - np.array(fast.losses))))
    for name, outcome in [
        ("eager, custom op", eager),
        ("eager, op chain", plain),
        (f"compiled, {options.backend}", fast),
    ]:
        print(f"{name:<22} accuracy {100 * outcome.accuracy:5.1f} %   {outcome.milliseconds:.3f} ms per step")
    print(f"largest loss difference, eager against compiled, over {options.steps} steps: {drift:.2e}")
    if options.backend not in compiled.last_run.executors:
        why = capability.reason or "it took none of the regions: the table above says why"
        print(f"note: {options.backend} did not run here ({why}); its times are those of the native executor")

    failed = failures({"eager, custom op": eager, "eager, op chain": plain, "compiled": fast}, drift)
    print("\n" + "\n".join(f"FAILED: {text}" for text in failed) if failed else "\nOK")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
