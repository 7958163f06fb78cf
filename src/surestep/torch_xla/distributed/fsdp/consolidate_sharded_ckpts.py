"""Makes one checkpoint of the processes' own: ``python -m torch_xla.distributed.fsdp.consolidate_sharded_ckpts --ckpt_prefix PREFIX``."""

from __future__ import annotations

from argparse import ArgumentParser

from surestep.torch_xla.distributed.fsdp.state_dict_utils import consolidate_sharded_model_checkpoints


def main() -> None:
    """The command."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--ckpt_prefix", required=True, help="files that match PREFIX and SUFFIX together are read")
    parser.add_argument("--ckpt_suffix", default="*.pth", help="*.pth, if it isn't given")
    parser.add_argument("--save_path", default="", help="PREFIX_consolidated.pth, if it isn't given")
    options = parser.parse_args()
    _, path = consolidate_sharded_model_checkpoints(options.ckpt_prefix, options.ckpt_suffix, options.save_path)
    print(f"saved {path}")  # noqa: T201 (a command)


if __name__ == "__main__":
    main()
