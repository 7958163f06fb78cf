"""Runs a file on tags in place of values: what calls give."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from surestep.lint import vocabulary as names
from surestep.lint.program import Call, Function, Use
from surestep.lint.values import (
    BOOLEAN,
    COMPILED,
    COUNTER,
    DATA,
    DEVICE_LOADER,
    LOADER,
    LOCAL,
    MASTER,
    MAYBE,
    MODULE,
    OPTIMIZER,
    OTHER_DEVICE,
    PROGRESS,
    RANK,
    REPLICATED,
    SAME,
    SCALER,
    TENSOR,
    UNKNOWN,
    XLA,
    XLA_DEVICE,
    Value,
    merged,
)

if TYPE_CHECKING:
    from surestep.lint.evaluate import _Evaluator

_FACTORIES = frozenset(
    f"torch.{name}"
    for name in [
        "tensor",
        "zeros",
        "ones",
        "full",
        "empty",
        "rand",
        "randn",
        "randint",
        "arange",
        "linspace",
        "eye",
        "zeros_like",
        "ones_like",
        "rand_like",
        "randn_like",
        "full_like",
        "empty_like",
        "as_tensor",
        "from_numpy",
        "normal",
        "randperm",
    ]
)
_TO_HOST = frozenset(["item", "tolist", "numpy", "cpu"])
_ABOUT = frozenset(
    [
        "size",
        "dim",
        "numel",
        "element_size",
        "stride",
        "type",
        "get_device",
        "is_contiguous",
        "data_ptr",
        "keys",
        "is_floating_point",
    ]
)
_BOOLEAN = frozenset(["eq", "ne", "gt", "lt", "ge", "le", "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_not", "bool"])
_PASS_THROUGH = frozenset(
    ["iter", "reversed", "sorted", "list", "tuple", "enumerate", "zip", "map", "filter", "min", "max", "sum", "abs"]
) | {
    "itertools.islice",
    "itertools.cycle",
    "itertools.chain",
    "copy.deepcopy",
    "copy.copy",
}
_TENSOR_LIBRARIES = ("torch.", "torch_xla.", "surestep.", "torchvision.ops.", "einops.")
_NO_TENSOR = (
    "torch.is_",
    "torch.utils.",
    "torch.cuda.",
    "torch.save",
    "torch.manual_seed",
    "torch.distributed.",
    "torch.get_",
    "torch.set_",
    "torch.optim.",
    "torch.profiler.",
    "torch_xla.core.xla_model.mesh_reduce",
    "torch_xla.core.xla_model._maybe_convert_to_cpu",
    "torch_xla.core.xla_model.rendezvous",
    "torch_xla.debug.",
    "torch_xla.runtime.",
    "torch_xla.test.",
)
_MODULE_MAKERS = ("torch.nn.", "torchvision.models.", "timm.create_model", "segmentation_models_pytorch.")


class Caller:
    """The part of an evaluator that knows calls."""

    def __init__(self, evaluator: _Evaluator):
        self.at = evaluator

    def call(self, node: ast.Call, dropped: bool = False) -> Value:
        """Evaluates a call, records it, and passes its arguments to the functions of the file that it may reach."""
        at = self.at
        callee = at.held[node.func] = at.value(node.func)
        receiver = at.held[node.func.value] if isinstance(node.func, ast.Attribute) else UNKNOWN
        arguments = [at.value(argument.value if isinstance(argument, ast.Starred) else argument) for argument in node.args]
        keywords = {}
        for keyword in node.keywords:
            value = at.value(keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
        targets = self._targets(callee, node)
        call = Call(node, at.function, at.frames, callee, receiver, arguments, keywords, targets, dropped)
        at.function.events.append(call)
        self._format(call)
        for target in targets:
            self._pass(target, call)
        self._launch(call)
        self._reduce(call)
        call.result = self._result(call)
        return call.result

    # -- functions of the file

    def _targets(self, callee: Value, node: ast.Call) -> tuple[Function, ...]:
        found = list(callee.functions)
        for cls in callee.classes:
            if init := cls.method("__init__"):
                found.append(init)
        if not isinstance(node.func, ast.Attribute):
            for cls in callee.instances:
                if forward := cls.method("forward") or cls.method("__call__"):
                    found.append(forward)
        elif callee.instances:
            found += [method for cls in callee.instances if (method := cls.method("forward"))]
        return tuple(dict.fromkeys(found))

    def _pass(self, function: Function, call: Call) -> None:
        arguments = function.node.args if not isinstance(function.node, ast.Module) else None
        if arguments is None:
            return
        positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
        if function.owner is not None and positional and "self" in positional[:1]:
            positional = positional[1:]
        given = [*zip(positional, call.arguments, strict=False), *call.keywords.items()]
        for name, value in given:
            if name in function.params:
                function.params[name] = function.params[name].join(value)

    def _launch(self, call: Call) -> None:
        """A launched function gets its number, then what is in ``args``."""
        if call.name not in names.LAUNCH or not call.arguments:
            return
        given = call.keywords.get("args") or (call.arguments[1] if len(call.arguments) > 1 else UNKNOWN)
        for function in call.arguments[0].functions:
            params = list(function.params)
            if params:
                function.params[params[0]] = function.params[params[0]].having(RANK)
            for name, value in zip(params[1:], given.items or (), strict=False):
                function.params[name] = function.params[name].join(value)

    def _reduce(self, call: Call) -> None:
        """What a collective is given, in a list too, is afterwards the same everywhere."""
        if call.name in names.REDUCE_METRIC:
            for argument in call.node.args:
                for node in argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument]:
                    if isinstance(node, ast.Name | ast.Attribute):
                        self.at.assign(node, self.at.value(node, silent=True).having(SAME))

    # -- results

    def _result(self, call: Call) -> Value:
        if call.targets:
            return self._of_functions(call)
        if call.name is not None:
            return self._of_name(call, call.name)
        if call.method is not None:
            return self._of_method(call, call.method)
        return self._of_unknown(call)

    def _of_functions(self, call: Call) -> Value:
        found = merged([target.returned for target in call.targets if target.name != "__init__"])
        instances = [Value(instances=(cls,), tags=cls.tags) for cls in call.callee.classes]
        compiled = Value(tags=call.callee.tags & {XLA}) if call.callee.instances else UNKNOWN
        return merged([found, *instances, compiled.having(TENSOR) if XLA in compiled else compiled])

    def _of_name(self, call: Call, name: str) -> Value:
        first = call.arguments[0] if call.arguments else UNKNOWN
        everything = merged([*call.arguments, *call.keywords.values()])
        tags: set[str] = set()
        if name in names.XLA_DEVICE:
            tags = {XLA_DEVICE}
        elif name == "torch.device":
            tags = set(merged([first, call.keywords.get("type", UNKNOWN)]).device_tags)
        elif name in names.ORDINAL:
            tags = {RANK}
        elif name in names.MASTER:
            tags = {MASTER}
        elif name in names.DATA_LOADER:
            return Value(tags=frozenset({LOADER}), origins=(call.node,))
        elif name in names.DEVICE_LOADER | names.PARALLEL_LOADER:
            tags = {LOADER, DEVICE_LOADER} if name in names.DEVICE_LOADER else {LOADER}
            return Value(tags=frozenset(tags), origins=first.origins)
        elif name in names.COMPILE:
            return Value(tags=frozenset({COMPILED}), functions=first.functions, instances=first.instances)
        elif name in names.DDP | names.FSDP:
            return Value(tags=first.tags | {REPLICATED, MODULE}, instances=first.instances)
        elif name in names.SCALER:
            tags = {SCALER}
        elif name in names.PROGRESS:
            return first.having(PROGRESS)
        elif name in _FACTORIES:
            on_xla = XLA_DEVICE in call.keywords.get("device", UNKNOWN).device_tags or (name.endswith("_like") and XLA in first)
            tags = {TENSOR, XLA} if on_xla else {TENSOR}
        elif name in _PASS_THROUGH:
            return Value(tags=everything.tags, items=self._enumerated(name, call), origins=everything.origins)
        elif name == "next":
            return self.element(call.node.args[0], first) if call.node.args else UNKNOWN
        elif name == "range":
            tags = {COUNTER} if self._has_loop() else set()
        elif name == "str" and call.node.args and isinstance(call.node.args[0], ast.Constant):
            return Value(text=str(call.node.args[0].value))
        elif name in ("int", "float", "len", "bool", "str"):
            tags = ({DATA} if XLA in first or DATA in first else set()) | set(first.tags & {COUNTER, RANK})
            tags |= _local(first) if name != "len" else set()
        else:
            return self._of_library(call, name, everything)
        return Value(tags=frozenset(tags))

    def _of_library(self, call: Call, name: str, everything: Value) -> Value:
        optimizing = name.startswith(("torch.optim.", "torch_xla.amp.syncfree.")) and "lr_scheduler" not in name
        if optimizing or name in names.SHARDED_OPTIMIZER or _last(name).endswith(("Optimizer", "AdamW", "Adafactor")):
            return Value(tags=frozenset({OPTIMIZER} | (everything.tags & {XLA})))
        if (name.startswith(_MODULE_MAKERS) and (_last(name)[:1].isupper() or name.startswith(_MODULE_MAKERS[1:]))) or name.endswith(
            "from_pretrained"
        ):
            return Value(tags=frozenset({MODULE}))
        if call.arguments and MODULE in call.arguments[0]:
            return call.arguments[0]  # compiled, traced or wrapped
        if name == "torch_xla.core.xla_model.send_cpu_data_to_device":
            return Value(tags=frozenset({XLA, TENSOR}))
        if XLA in everything and name.startswith(_TENSOR_LIBRARIES) and not name.startswith(_NO_TENSOR):
            same = {SAME} if name in names.REDUCE_METRIC else everything.tags & {SAME}
            return Value(tags=frozenset({XLA, TENSOR} | same | ({BOOLEAN} if _last(name) in _BOOLEAN else set())))
        if everything.tags & {XLA, MAYBE} and not name.startswith(_NO_TENSOR):
            return Value(tags=frozenset({MAYBE}))
        if name.startswith(("math.", "numpy.")):
            return Value(tags=everything.tags & {LOCAL})
        return Value(tags=everything.tags & {COUNTER, DATA, RANK, LOCAL} if name in ("os.path.join", "round") else frozenset())

    def _of_method(self, call: Call, method: str) -> Value:
        receiver = call.receiver
        if method in ("to", "cuda", "xpu"):
            return self._moved(call, method)
        if method in _TO_HOST:
            read = method in ("item", "tolist") and receiver.tags & {XLA, MAYBE}
            return Value(tags=frozenset({DATA} | _local(receiver) if read else ()))
        if method in _ABOUT:
            return UNKNOWN
        if method == "per_device_loader":
            return Value(tags=frozenset({LOADER, DEVICE_LOADER}), origins=receiver.origins)
        if method in ("next", "__next__") and LOADER in receiver:
            return self.element(call.node.func, receiver)
        if method in ("format", "join") and receiver.text is not None:
            return Value(text=receiver.text, tags=merged(call.arguments).tags & {RANK})
        if method in ("items", "values", "get", "pop", "copy"):
            return Value(tags=receiver.tags, origins=receiver.origins)
        if method in ("parameters", "named_parameters", "state_dict", "buffers"):
            return Value(tags=receiver.tags & {XLA} | {TENSOR})
        if method in ("train", "eval", "requires_grad_") and not receiver.tags & {TENSOR}:
            return receiver
        if method == "append" and isinstance(call.node.func, ast.Attribute) and isinstance(call.node.func.value, ast.Name):
            self._add(call.node.func.value.id, merged(call.arguments).tags & {XLA})
            return UNKNOWN
        if XLA in receiver:
            return Value(tags=frozenset({XLA, TENSOR} | receiver.tags & {SAME} | ({BOOLEAN} if method in _BOOLEAN else set())))
        return self._of_unknown(call)

    def _of_unknown(self, call: Call) -> Value:
        """An object that is called: a module on the device gives tensors there; a function may."""
        everything = merged([*call.arguments, *call.keywords.values()])
        if XLA in call.callee and call.method is None:
            return Value(tags=frozenset({XLA, TENSOR}))
        if XLA in everything and (MODULE in call.callee or (call.method is None and _is_loss(call.node.func))):
            return Value(tags=frozenset({XLA, TENSOR}))
        return Value(tags=frozenset({MAYBE} if (everything.tags | call.callee.tags) & {XLA, MAYBE} else ()))

    def _moved(self, call: Call, method: str) -> Value:
        """``x.to(device)``. A module is moved in place, so that the name it is called on changes too."""
        to = (
            merged([*call.arguments[:1], call.keywords.get("device", UNKNOWN)]) if method == "to" else Value(tags=frozenset({OTHER_DEVICE}))
        )
        receiver, tags = call.receiver, to.device_tags
        if XLA_DEVICE in tags or XLA in to:
            result = receiver.having(XLA)
        elif tags:
            return receiver.without(XLA)
        else:
            return receiver
        assert isinstance(call.node.func, ast.Attribute)
        moved = call.node.func.value
        in_place = (MODULE in receiver or call.dropped) and TENSOR not in receiver and LOADER not in receiver
        if in_place and isinstance(moved, ast.Name | ast.Attribute):
            self.at.assign(moved, result)
        return result

    # -- iteration

    def element(self, node: ast.expr, over: Value) -> Value:
        """What a loop's target gets."""
        if isinstance(node, ast.Call):
            name = self.at.held[node.func].name
            if name in names.PROGRESS and node.args:
                return self.element(node.args[0], over)
            if name == "zip":
                parts = tuple(self.element(part, self.at.value(part, silent=True)) for part in node.args)
                return Value(tags=merged(list(parts)).tags, items=parts)
            if name == "enumerate" and node.args:
                inner = self.element(node.args[0], self.at.value(node.args[0], silent=True))
                return Value(tags=inner.tags, items=(Value(tags=frozenset({COUNTER})), inner))
            if name in ("range", "tqdm.trange", "tqdm.auto.trange"):
                return Value(tags=frozenset({COUNTER}))
        if over.items is not None and len(over.items) == 2 and COUNTER in over.items[0]:
            return Value(tags=over.tags, items=(over.items[0], self.element(node, over.items[1])))
        if DEVICE_LOADER in over:
            return Value(tags=frozenset({XLA, TENSOR}), origins=over.origins)
        if LOADER in over:
            return Value(tags=frozenset({TENSOR}), origins=over.origins)
        if over.items is not None:
            return merged(list(over.items))
        return Value(tags=over.tags - {LOADER}, functions=over.functions)

    def _enumerated(self, name: str, call: Call) -> tuple[Value, ...] | None:
        if name == "enumerate" and call.arguments:
            return (Value(tags=frozenset({COUNTER})), call.arguments[0])
        return call.arguments[0].items if name in ("list", "tuple") and call.arguments else None

    # -- side effects and looks

    def environment(self, target: ast.Subscript, value: ast.expr | None) -> None:
        """``os.environ[name] = value``, told as a call of ``os.putenv``, which is what it does."""
        if value is not None and self.at.value(target.value, silent=True).name == "os.environ":
            node = ast.Call(ast.Name("putenv", ast.Load()), [target.slice, value], [])
            ast.copy_location(node, target)
            at = self.at
            callee = Value(name="os.putenv")
            arguments = [at.value(target.slice, silent=True), at.value(value, silent=True)]
            at.function.events.append(Call(node, at.function, at.frames, callee, UNKNOWN, arguments, {}, (), True))

    def _format(self, call: Call) -> None:
        """``"%s" % x`` and ``"{}".format(x)`` read ``x``."""
        if call.method == "format" and call.receiver.text is not None:
            for node, value in zip(call.node.args, call.arguments, strict=True):
                self.at.function.events.append(Use("format", node, call.function, call.frames, value))

    def _add(self, name: str, tags: frozenset[str]) -> None:
        if tags and name in self.at.variables:
            self.at.variables[name] = self.at.variables[name].having(*tags)

    def _has_loop(self) -> bool:
        return any(frame.kind == "loop" for frame in self.at.frames)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _local(value: Value) -> set[str]:
    """What a number read from a value says of the replica."""
    return {LOCAL} if value.tags & {XLA, LOCAL} and SAME not in value else set()


def _is_loss(node: ast.expr) -> bool:
    """Loss functions are the one kind of thing that is told by its name, where it came as an argument or from another file."""
    last = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return any(word in last.lower() for word in ("loss", "criterion"))
