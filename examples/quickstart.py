"""One custom operator from registration to a proved compiled run, on real data.

Defines a gated activation as a custom operator (schema, fake rule, gradient, a second kernel), checks its contract,
trains a small classifier on scikit-learn's handwritten digits with it, eager and compiled by TVM, and prints which
executor served every region, forward and backward. A custom operator stays one node in the compiled program, run by its
own kernel; what lies around it, and its gradient, are compiled. The last section shows a chain of built-in operators,
which a compiler takes whole.

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
from tensorplay.outcome import RunReport

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


def show_operator() -> None:
    """Schema, effects, kernels, fake rule and gradient of the operator, each with its place."""
    section("the operator")
    print(repr(gated))


def show_contract() -> None:
    """Each check of the contract: pass, fail, or skip with its reason."""
    section("its contract: values, graph, executor")
    report = tp.verify(gated, (tp.tensor(np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)), 1.0))
    print(report.text())
    report.raise_if_failed()


def show_graph() -> None:
    """What a capture holds of a call."""
    section("captured graph: the operator is one node, its body is not in it")
    print(str(tp.graph.capture(lambda x: gated(x * 2.0, 1.5) + 1.0, tp.ones((2, 3)))).rstrip())


def classify(backend: str, steps: int) -> tuple[RunReport, list[str]]:
    """Trains the classifier eager and compiled; who ran, and what did not come out as it must."""
    section("training on handwritten digits, with the operator as activation")
    data = load()
    capability = tp.backends.capabilities()[backend]
    print(capability)
    model = Classifier(gated)
    eager = train("eager", model, model.loss, data, steps)
    model = Classifier(gated)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a backend is absent is said below
        compiled = tp.compile(model.loss, backend=backend, on_fallback="record")
        fast = train(f"compiled, {backend}", model, compiled, data, steps)
    outcomes = {"eager": eager, f"compiled, {backend}": fast}
    drift = float(np.max(np.abs(np.array(eager.losses) - np.array(fast.losses))))
    for name, outcome in outcomes.items():
        print(f"{name:<22} accuracy {100 * outcome.accuracy:5.1f} %   {outcome.milliseconds:.3f} ms per step")
    print(f"largest loss difference, eager against compiled, over {steps} steps: {drift:.2e}")

    section("who ran one compiled step, forward and backward")
    print(compiled.last_run)
    own = {str(run.marker) for run in compiled.last_run.forward if "demo::gated.default" in run.ops}
    print(f"the operator's kernel: {', '.join(sorted(own))}")
    print("native: a kernel of this package; python: one written in Python; any other: code of that backend")
    if backend not in compiled.last_run.executors:
        why = capability.reason or "it took none of the regions: the table above says why"
        print(f"note: {backend} did not run here ({why}); its times are those of the native executor")
    return compiled.last_run, failures(outcomes, drift)


def show_chain(backend: str) -> tuple[RunReport, list[str]]:
    """The same activation from built-in operators: one region forward, one backward; who ran, and what came out wrong."""
    section("the same activation as a chain of built-in operators, compiled")
    slope = 1.5
    chain = tp.compile(lambda x: x * tp.sigmoid(x * slope), backend=backend, on_fallback="record")
    values = np.random.default_rng(3).normal(size=(256, 64)).astype(np.float32)
    x, same = (tp.tensor(values, requires_grad=True) for _ in range(2))
    y, wanted = chain(x), gated(same, slope)
    y.backward(tp.ones_like(y))
    wanted.backward(tp.ones_like(wanted))
    print(chain.last_run)
    pairs = [(y.detach(), wanted.detach()), (x.grad, same.grad)]
    worst = max(float(np.abs(a.numpy() - b.numpy()).max()) for a, b in pairs)
    print(f"largest difference to the custom operator, values and gradients: {worst:.2e}")
    failed = [] if worst < 1e-5 else [f"chain and custom operator differ by {worst:.2e}, 1e-05 is allowed"]
    return chain.last_run, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=positive, default=400, help="training steps of each run, 1 or more")
    parser.add_argument(
        "--backend", default="tvm", choices=tp.backends.names(), help="who compiles the training step"
    )
    options = parser.parse_args()
    show_operator()
    show_contract()
    show_graph()
    _, failed = classify(options.backend, options.steps)
    failed += show_chain(options.backend)[1]
    print("\n" + "\n".join(f"FAILED: {text}" for text in failed) if failed else "\nOK")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
