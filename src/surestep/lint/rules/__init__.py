"""The rules, one family a file."""

from surestep.lint.rules import boundaries, distributed, old_names, placement, precision, processes, reads, replicas, saving, shapes
from surestep.lint.rules.rule import Rule

RULES: dict[str, type[Rule]] = {
    rule.code: rule
    for rule in (
        boundaries.NoBoundary,
        boundaries.MixedBoundaries,
        boundaries.BoundaryUnderLoader,
        boundaries.BoundaryBeforeUpdate,
        placement.OptimizerBeforeMove,
        placement.DroppedMove,
        processes.DeviceBeforeLaunch,
        processes.LaunchOutsideMain,
        processes.LaunchOfClosure,
        processes.DeviceAfterLaunch,
        replicas.GradientsNotReduced,
        replicas.GradientsReducedTwice,
        replicas.MetricNotReduced,
        replicas.NoSampler,
        replicas.EveryRankSaves,
        replicas.CollectiveByRank,
        replicas.CollectiveByData,
        saving.SaveOfXlaTensors,
        saving.SaveByRank,
        reads.HostRead,
        shapes.NoDropLast,
        shapes.DataDependentShape,
        shapes.PaddedToLongest,
        shapes.ChangingSlice,
        distributed.DdpDeviceIds,
        distributed.DdpBucketView,
        distributed.InitMethod,
        precision.GradScaler,
        precision.WrongAutocast,
        precision.PinnedMemory,
        old_names.DeprecatedName,
        old_names.RemovedName,
        old_names.OldVariable,
        old_names.BothPackages,
        old_names.AbsentName,
    )
}

__all__ = ["RULES", "Rule"]
