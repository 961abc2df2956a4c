"""Which operations of a step a thread runs next, and what kinds of operations take no memory of their own."""

from __future__ import annotations

from collections import deque

from tfaccel.measuring.step_program import StepProgram

# Their result is their first input's memory.
SHARE_INPUT = {
    *("Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient", "EnsureShape"),
    *("CheckNumerics", "Snapshot", "Bitcast"),
}
# They write into an input of the same type and size that nobody else needs.
REUSE_INPUT = {
    *("Add", "AddV2", "Sub", "Mul", "RealDiv", "Div", "DivNoNan", "MulNoNan", "Maximum", "Minimum", "Pow", "Xdivy"),
    *("SquaredDifference", "AddN", "BiasAdd", "Select", "ClipByValue", "LogicalAnd", "LogicalOr", "LogicalNot"),
    *("Relu", "Relu6", "Elu", "Selu", "LeakyRelu", "Sigmoid", "Tanh", "Softplus", "Softsign", "Softmax", "LogSoftmax"),
    *("Exp", "Expm1", "Log", "Log1p", "Neg", "Sqrt", "Rsqrt", "Square", "Erf", "Erfc", "Abs", "Sign", "Reciprocal"),
    *("Inv", "Floor", "Ceil", "Round", "Sin", "Cos"),
    *("ReluGrad", "Relu6Grad", "EluGrad", "SeluGrad", "LeakyReluGrad", "SigmoidGrad", "TanhGrad", "RsqrtGrad"),
    *("SqrtGrad", "InvGrad", "ReciprocalGrad", "SoftplusGrad", "SoftsignGrad"),
}
# A thread runs them at once, before anything else.
CHEAP = {*SHARE_INPUT, "Const", "NoOp", "Shape", "ReadVariableOp", "AssignVariableOp", "StridedSlice", "Pack"}


class ReadyOperations:
    """The operations that wait for nothing any more, for each thread."""

    def __init__(self, program: StepProgram, num_threads: int, first: int) -> None:
        self._program = program
        self._waits = list(program.num_waits)
        self._next: list[deque[int]] = [deque() for _ in range(num_threads)]
        self._stacks: list[deque[int]] = [deque() for _ in range(num_threads)]
        roots = (index for index, number in enumerate(program.num_waits) if number == 0)
        for turn, index in enumerate(roots):
            self._stacks[(turn + first) % num_threads].append(index)

    def take(self, thread: int) -> int | None:
        """The operation that a thread runs now; None if there is none."""
        if self._next[thread]:
            return self._next[thread].popleft()
        if self._stacks[thread]:
            return self._stacks[thread].popleft()
        return next((stack.pop() for stack in self._stacks if stack), None)

    def finished(self, thread: int, index: int) -> None:
        """Notes that a thread has run an operation: cheap ones that are now ready follow at once, and one other."""
        other = None
        for follower in self._program.followers[index]:
            self._waits[follower] -= 1
            if self._waits[follower]:
                continue
            if self._program.nodes[follower].kind in CHEAP:
                self._next[thread].append(follower)
            else:
                if other is not None:
                    self._stacks[thread].appendleft(other)
                other = follower
        if other is not None:
            (self._stacks[thread].appendleft if self._next[thread] else self._next[thread].append)(other)
