# SPDX-License-Identifier: Apache-2.0
"""The command line: python -m specdec_kernels info | selfcheck | generate | cache.

info and selfcheck need only torch and numpy, since each command imports its modules when it runs.
"""

import argparse
import importlib
import os
import re
import sys

from specdec_kernels.cli import checks, options

INTERRUPTED = 130  # the exit status after Ctrl-C
CLOSED = 1  # the exit status if the reader of the output has closed it


def info(args) -> int:
    """Show what is installed, what was chosen, and what is missing."""
    from specdec_kernels.cli.info import collect, sentence

    found = collect()
    for name, value in found.items():
        print(f"{name:<{max(map(len, found))}}  {value}")
    print(f"\n{sentence()}")
    return 0


def selfcheck(args) -> int:
    """Check the installed ops statistically, in under a minute."""
    from specdec_kernels import selfcheck as check

    return 0 if check.run() else 1


def generate(args) -> int:
    """Continue text speculatively: the text goes to stdout as it comes, statistics to stderr."""
    try:
        checks.check(args)
    except ValueError as error:
        return _wrong(error)
    return _with_extra("generate", args)


def cache(args) -> int:
    """List the models that were unpacked into the cache, with their sizes."""
    return _with_extra("cache", args)


def _with_extra(command, args):
    """Run the command's module, which may need packages of an extra, and return its exit status."""
    try:
        return importlib.import_module(f"specdec_kernels.cli.{command}").run(args) or 0
    except ModuleNotFoundError as error:
        package = str(error.name).split(".")[0]
        extra, what = ("decode,grammar", "--grammar") if package == "llguidance" else ("decode", command)
        how = f'in the source tree, pip install --no-build-isolation -e ".[{extra}]"'
        print(f"error: {what} needs {package}, which the plain install leaves out: {how}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        raise  # an OSError too, but main handles it
    except (ValueError, ImportError, OSError) as error:
        return _wrong(error)
    except KeyboardInterrupt:  # while models are loaded
        return INTERRUPTED


def _wrong(error) -> int:
    print(f"error: {error}", file=sys.stderr)
    return 2


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Help formatter that shows the default of each option that has one."""

    def _get_help_string(self, action):
        none = action.nargs == 0 or action.default in (None, "", [])
        return action.help if none else super()._get_help_string(action)


class _Parser(argparse.ArgumentParser):
    """Parser that raises ValueError with a one-line error instead of exiting, and does not hide failed writes."""

    def error(self, message):
        raise ValueError(re.sub(r"^argument (\S+): (must .*)", r"\1 \2", message))

    def _print_message(self, message, file=None):
        """Print without argparse's `except OSError`, since main handles the error if a reader has closed the output."""
        print(message, end="", file=file or sys.stderr)


COMMANDS = {"info": info, "selfcheck": selfcheck, "generate": generate, "cache": cache}


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status. arguments: the command line, by default that of the process."""
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout again at exit
        return CLOSED


def _run(arguments) -> int:
    parser = _Parser(prog="python -m specdec_kernels", description="Exact verification for speculative decoding.")
    parser.add_argument("--version", action="store_true", help="the version of this package")
    commands = parser.add_subparsers(metavar="command")
    for name, command in COMMANDS.items():
        text = command.__doc__
        one = commands.add_parser(name, help=text, description=text, formatter_class=_Help, allow_abbrev=False)
        one.set_defaults(command=command)
        if command is generate:
            options.add(one)
            one.epilog = options.guarantees()
        if command is cache:
            one.add_argument("--clear", action="store_true", help="remove them")
    try:
        args = parser.parse_args(arguments)
    except ValueError as error:
        return _wrong(error)
    if args.version:
        print(importlib.import_module("specdec_kernels").__version__)
        return 0
    if "command" not in args:
        parser.print_help()
        return 2
    return args.command(args)
