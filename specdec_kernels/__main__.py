# SPDX-License-Identifier: Apache-2.0
try:
    from specdec_kernels.cli import main
except ModuleNotFoundError as error:
    if error.name not in ("typer", "rich"):
        raise
    raise SystemExit(f"the command line needs {error.name}: pip install 'specdec_kernels[decode]'") from None

main()
