"""Runs a file on tags in place of values: statements. Branches are joined; a loop's body sees what the end of it left in the round before.

A few rounds are made over the whole file, so that what callers pass reaches the functions, and what these return reaches the callers. The
events of the last round are the program.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable

from surestep.lint import vocabulary as names
from surestep.lint.calls import Caller
from surestep.lint.program import Class, Frame, Function, Program, Use
from surestep.lint.source import Source
from surestep.lint.values import (
    BOOLEAN,
    COUNTER,
    DATA,
    LOCAL,
    MASTER,
    MODULE,
    OPTIMIZER,
    RANK,
    SAME,
    TENSOR,
    UNKNOWN,
    XLA,
    Value,
    merged,
)

_ROUNDS = 4
_BUILTINS = frozenset(name for name in dir(builtins) if not name.startswith("_"))
_HOST_ATTRIBUTES = frozenset(
    [
        "shape",
        "device",
        "dtype",
        "ndim",
        "is_cuda",
        "requires_grad",
        "name",
        "training",
        "itemsize",
        "layout",
        "batch_size",
        "config",
        "__class__",
        "is_leaf",
        "param_groups",
    ]
)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def evaluate(source: Source, tree: ast.Module) -> Program:
    """The program of a file."""
    evaluator = _Evaluator(tree)
    for _ in range(_ROUNDS):
        before = evaluator.summary()
        evaluator.round()
        if evaluator.summary() == before:
            break
    functions = list(evaluator.functions.values())
    return Program(source, tree, evaluator.module, functions, list(evaluator.classes.values()), evaluator.imported, evaluator.resolved)


class _Evaluator:
    """One file. ``function``, ``frames`` and ``variables`` say where it is."""

    def __init__(self, tree: ast.Module):
        self.module = Function("<module>", tree, None)
        self.functions: dict[ast.AST, Function] = {tree: self.module}
        self.classes: dict[ast.ClassDef, Class] = {}
        self.imported: set[str] = set()
        self.resolved: dict[ast.expr, str] = {}
        self.carried: dict[ast.AST, dict[str, Value]] = {}  # what the end of a loop's body left
        self.function = self.module
        self.owner: Class | None = None
        self.frames: tuple[Frame, ...] = ()
        self.loop_frames: dict[ast.AST, Frame] = {}
        self.variables: dict[str, Value] = {}
        self.held: dict[ast.expr, Value] = {}  # what was last found of functions, and of what attributes are taken from
        self.caller = Caller(self)

    def summary(self) -> list[object]:
        """What a further round depends on."""
        functions = [(dict(f.params), f.returned, dict(f.variables)) for f in self.functions.values()]
        return [functions, [dict(cls.attributes) for cls in self.classes.values()], {k: dict(v) for k, v in self.carried.items()}]

    def round(self) -> None:
        """Evaluates the module, then each function that has been found, those that are found on the way too."""
        done: set[ast.AST] = set()
        while waiting := [node for node in self.functions if node not in done]:
            for node in waiting:
                done.add(node)
                self._evaluate_function(self.functions[node])

    def _evaluate_function(self, function: Function) -> None:
        self.function, self.frames, self.owner = function, (), function.owner
        self.variables = dict(function.params)
        function.events.clear()
        if isinstance(function.node, ast.Lambda):
            function.returned = self.value(function.node.body)
        else:
            self.block(function.node.body)
        function.variables = self.variables

    # -- statements

    def block(self, body: list[ast.stmt]) -> bool:
        """Runs statements; whether the end is reached."""
        frames, reached = self.frames, True
        for statement in body:
            handler = getattr(self, f"_{type(statement).__name__}", None)
            if handler is None:
                self._parts(statement)
            elif handler(statement) is False:
                reached = False
        self.frames = frames
        return reached

    def _parts(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
            elif isinstance(child, ast.stmt):
                self.block([child])

    def _Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.caller.call(node.value, dropped=True)
        else:
            self.value(node.value)

    def _Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.imported.add(alias.name)
            bound = alias.asname or alias.name.partition(".")[0]
            self.bind(bound, Value(name=alias.name if alias.asname else bound))

    def _ImportFrom(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        self.imported.add(module)
        for alias in node.names:
            if alias.name == "*":
                for name in names.STARS.get(module, ()):
                    self.bind(name, Value(name=f"{module}.{name}"))
            else:
                self.imported.add(f"{module}.{alias.name}")
                self.bind(alias.asname or alias.name, Value(name=_canonical(f"{module}.{alias.name}")))

    def _FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        function = self.functions.setdefault(node, Function(node.name, node, self.function, self.owner))
        function.decorators = [self.value(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list]
        self._defaults(function, node.args)
        if self.owner is not None and self.owner.node in ast.walk(self.function.node) and node in self.owner.node.body:
            self.owner.methods[node.name] = function
            if node.args.args and not any(d.name == "staticmethod" for d in function.decorators):
                function.params[node.args.args[0].arg] = Value(instances=(self.owner,), tags=self.owner.tags)
        else:
            self.variables[node.name] = Value(functions=(function,))

    _AsyncFunctionDef = _FunctionDef

    def lambda_(self, node: ast.Lambda) -> Value:
        """A lambda is a function like any other."""
        function = self.functions.setdefault(node, Function("<lambda>", node, self.function, self.owner))
        self._defaults(function, node.args)
        return Value(functions=(function,))

    def _defaults(self, function: Function, arguments: ast.arguments) -> None:
        positional = [*arguments.posonlyargs, *arguments.args]
        pairs = [*zip(reversed(positional), reversed(arguments.defaults), strict=False)]
        pairs += [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None]
        for argument in [*positional, *arguments.kwonlyargs]:
            function.params.setdefault(argument.arg, UNKNOWN)
        for extra in (arguments.vararg, arguments.kwarg):
            if extra is not None:
                function.params.setdefault(extra.arg, UNKNOWN)
        for argument, default in pairs:
            function.params[argument.arg] = function.params[argument.arg].join(self.value(default))

    def _ClassDef(self, node: ast.ClassDef) -> None:
        cls = self.classes.setdefault(node, Class(node.name, node, []))
        cls.bases = [self.value(base) for base in node.bases]
        outer, variables = self.owner, self.variables
        self.owner, self.variables = cls, dict(variables)
        self.block(node.body)
        for name, value in self.variables.items():
            if variables.get(name) is not value:
                cls.attributes[name] = cls.attributes.get(name, UNKNOWN).join(value)
        self.owner, self.variables = outer, variables
        self.variables[node.name] = Value(classes=(cls,))

    def _Return(self, node: ast.Return) -> bool:
        if node.value is not None:
            self.function.returned = self.function.returned.join(self.value(node.value))
        return False

    def _Raise(self, node: ast.Raise) -> bool:
        self._parts(node)
        return False

    def _Continue(self, node: ast.Continue) -> bool:
        return False

    _Break = _Continue

    def _If(self, node: ast.If) -> bool:
        test = self.truth(node.test)
        frame, frames = Frame("if", node, test), self.frames
        before = self.variables
        self.variables, self.frames = dict(before), (*frames, frame)
        then = self.block(node.body)
        after_then, self.variables = self.variables, dict(before)
        otherwise = self.block(node.orelse)
        self.frames = frames
        if then and otherwise:
            self.variables = _joined(after_then, self.variables)
        elif then:
            self.variables = after_then
        if then != otherwise:  # the rest is reached by one branch only
            self.frames = (*frames, frame)
        return then or otherwise

    def _For(self, node: ast.For | ast.AsyncFor) -> None:
        over = self.value(node.iter)
        self._loop(node, over, lambda: self.assign(node.target, self.caller.element(node.iter, over)))

    _AsyncFor = _For

    def _While(self, node: ast.While) -> None:
        self._loop(node, UNKNOWN, lambda: self.truth(node.test))

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, over: Value, begin: Callable[[], object]) -> None:
        frame = self.loop_frames.setdefault(node, Frame("loop", node, over))
        frame.value = over
        before, frames = self.variables, self.frames
        self.variables, self.frames = _joined(dict(before), self.carried.get(node, {})), (*frames, frame)
        begin()
        self.block(node.body)
        self.carried[node] = dict(self.variables)
        self.frames = frames
        self.variables = _joined(dict(before), self.variables)
        self.block(node.orelse)

    def _With(self, node: ast.With | ast.AsyncWith) -> bool:
        frames = self.frames
        for item in node.items:
            value = self.value(item.context_expr)
            entered = self.held[item.context_expr.func] if isinstance(item.context_expr, ast.Call) else value
            self.frames = (*self.frames, Frame("with", item.context_expr, entered.having(*value.tags)))
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value)
        reached = self.block(node.body)
        self.frames = frames
        return reached

    _AsyncWith = _With

    def _Try(self, node: ast.Try | ast.TryStar) -> bool:
        before = dict(self.variables)
        reached = self.block(node.body) and self.block(node.orelse)
        joined = self.variables
        for handler in node.handlers:
            self.variables = _joined(dict(before), joined)
            if self.block(handler.body):
                joined, reached = _joined(dict(joined), self.variables), True
        self.variables = joined
        self.block(node.finalbody)
        return reached

    _TryStar = _Try

    def _Match(self, node: ast.Match) -> None:
        self.value(node.subject)
        before = self.variables
        result = dict(before)
        for case in node.cases:
            self.variables = dict(before)
            if self.block(case.body):
                result = _joined(result, self.variables)
        self.variables = result

    def _Assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self.assign(target, value, node.value)

    def _AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.value(node.value), node.value)

    def _AugAssign(self, node: ast.AugAssign) -> None:
        value = self.value(node.value)
        held = self.value(node.target)
        tags = (held.tags | value.tags) & {XLA, COUNTER, DATA, LOCAL, SAME} | (
            {COUNTER} if self._in_loop() and not {XLA} & held.tags else set()
        )
        self.assign(node.target, Value(tags=frozenset(tags)))

    def _Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.variables.pop(target.id, None)

    def _Assert(self, node: ast.Assert) -> None:
        self.truth(node.test)

    def _in_loop(self) -> bool:
        return any(frame.kind == "loop" for frame in self.frames)

    # -- names

    def bind(self, name: str, value: Value) -> None:
        """An import. ``except ImportError: xm = None`` afterwards leaves the module known, since branches are joined."""
        self.variables[name] = value

    def assign(self, target: ast.expr, value: Value, expression: ast.expr | None = None) -> None:
        """Gives a target its new value."""
        if isinstance(target, ast.Name):
            self.variables[target.id] = value
        elif isinstance(target, ast.Starred):
            self.assign(target.value, value)
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, value)
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value)
            for cls in owner.instances:
                cls.attributes[target.attr] = cls.attributes.get(target.attr, UNKNOWN).join(value)
            self.variables[ast.unparse(target)] = value
        elif isinstance(target, ast.Subscript):
            self.caller.environment(target, expression)
            self.index(target)
            if isinstance(target.value, ast.Name):
                held = self.lookup(target.value.id)
                self.variables[target.value.id] = held.having(*value.tags & {XLA})

    def _unpack(self, targets: list[ast.expr], value: Value) -> None:
        if value.items is not None and len(value.items) == len(targets):
            for target, item in zip(targets, value.items, strict=True):
                self.assign(target, item)
        else:
            for target in targets:
                self.assign(target, Value(tags=value.tags, origins=value.origins))

    def lookup(self, name: str) -> Value:
        """A name, from the inside out."""
        if name in self.variables:
            return self.variables[name]
        function = self.function.parent
        while function is not None:
            if name in function.variables:
                return function.variables[name]
            function = function.parent
        return Value(name=name) if name in _BUILTINS else UNKNOWN

    # -- expressions

    def value(self, node: ast.expr, silent: bool = False) -> Value:
        """What is known of an expression. A silent look records nothing."""
        if silent:
            events = self.function.events[:]
            found = self.value(node)
            self.function.events[:] = events
            return found
        handler = getattr(self, f"_{type(node).__name__}", None)
        if handler is not None:
            return handler(node)
        return self._rest(node)

    def _rest(self, node: ast.expr) -> Value:
        found = [self.value(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return Value(tags=merged(found).tags)

    def _Name(self, node: ast.Name) -> Value:
        found = self.lookup(node.id)
        if found.name is not None and node.id not in _BUILTINS:
            self.resolved[node] = found.name
        return found

    def _Constant(self, node: ast.Constant) -> Value:
        return Value(text=node.value) if isinstance(node.value, str) else UNKNOWN

    def _JoinedStr(self, node: ast.JoinedStr) -> Value:
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.function.events.append(Use("format", part.value, self.function, self.frames, self.value(part.value)))
                if part.format_spec is not None:
                    self.value(part.format_spec)
        first = node.values[0] if node.values else None
        rank = any(isinstance(p, ast.FormattedValue) and RANK in self.value(p.value, silent=True) for p in node.values)
        text = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
        return Value(text=text, tags=frozenset({RANK} if rank else ()))

    def _Attribute(self, node: ast.Attribute) -> Value:
        base = self.held[node.value] = self.value(node.value)
        if (held := self.variables.get(f"{ast.unparse(node.value)}.{node.attr}" if not base.name else "")) is not None:
            return held
        for cls in base.instances:
            if method := cls.method(node.attr):
                return Value(functions=(method,))
            if (known := cls.attribute(node.attr)) is not None:
                return known
        if base.name is not None:
            self.resolved[node] = _canonical(f"{base.name}.{node.attr}")
            return Value(name=self.resolved[node])
        if node.attr in _HOST_ATTRIBUTES:
            return UNKNOWN
        return Value(tags=base.tags - {OPTIMIZER, MASTER, RANK}, origins=base.origins)

    def _Call(self, node: ast.Call) -> Value:
        return self.caller.call(node)

    def _Lambda(self, node: ast.Lambda) -> Value:
        return self.lambda_(node)

    def _Tuple(self, node: ast.Tuple | ast.List) -> Value:
        items = tuple(self.value(item) for item in node.elts)
        together = merged(list(items))
        return Value(tags=together.tags, items=items, functions=together.functions)

    _List = _Tuple

    def _Dict(self, node: ast.Dict) -> Value:
        values = [self.value(value) for value in node.values]
        for key in node.keys:
            if key is not None:
                self.value(key)
        return Value(tags=merged(values).tags)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        before = self.variables
        self.variables = dict(before)
        for generator in node.generators:
            self.assign(generator.target, self.caller.element(generator.iter, self.value(generator.iter)))
            for test in generator.ifs:
                self.truth(test)
        found = self.value(node.value if isinstance(node, ast.DictComp) else node.elt)
        self.variables = before
        return Value(tags=found.tags)

    _ListComp = _SetComp = _GeneratorExp = _DictComp = _comprehension

    def _NamedExpr(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        self.assign(node.target, value)
        return value

    def _IfExp(self, node: ast.IfExp) -> Value:
        self.truth(node.test)
        return self.value(node.body).join(self.value(node.orelse))

    def _BoolOp(self, node: ast.BoolOp) -> Value:
        return merged([self.truth(part) for part in node.values])

    def _UnaryOp(self, node: ast.UnaryOp) -> Value:
        return self.truth(node.operand) if isinstance(node.op, ast.Not) else self.value(node.operand)

    def _Compare(self, node: ast.Compare) -> Value:
        found = merged([self.value(part) for part in (node.left, *node.comparators)])
        if any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops):
            return UNKNOWN
        tags = set(found.tags & {XLA, TENSOR, LOCAL, SAME}) | ({BOOLEAN} if XLA in found else set())
        return Value(tags=frozenset(tags | ({MASTER} if found.tags & {RANK, MASTER} else set())))

    def _BinOp(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        found = left.join(right)
        return Value(tags=found.tags - {MODULE}, text=left.text)

    def _Subscript(self, node: ast.Subscript) -> Value:
        return self.index(node)

    def index(self, node: ast.Subscript) -> Value:
        """What is in ``value[index]``."""
        value = self.value(node.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        indices = [(part, self.value(part)) for part in parts]
        self.function.events.append(Use("index", node, self.function, self.frames, value, indices))
        known = _known_item(node.slice, value)
        return known or Value(tags=value.tags, origins=value.origins)

    def truth(self, node: ast.expr) -> Value:
        """An expression where Python asks whether it is true."""
        value = self.value(node)
        if not isinstance(node, ast.BoolOp) and not (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
            self.function.events.append(Use("truth", node, self.function, self.frames, value))
        return value


def _joined(one: dict[str, Value], other: dict[str, Value]) -> dict[str, Value]:
    for name, value in other.items():
        held = one.get(name)
        one[name] = value if held is None else held.join(value)
    return one


def _canonical(name: str) -> str:
    for prefix, same in names.SAME.items():
        if name == prefix or name.startswith(f"{prefix}."):
            return same + name[len(prefix) :]
    return name


def _known_item(index: ast.expr, value: Value) -> Value | None:
    at = index.value if isinstance(index, ast.Constant) else None
    return value.items[at] if value.items is not None and type(at) is int and -len(value.items) <= at < len(value.items) else None
