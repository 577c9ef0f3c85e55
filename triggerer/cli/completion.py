"""`triggerer completion`: prints the script that makes a shell complete commands, ids and names."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Final

import typer

from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import wrong_use
from triggerer.nearest import ending

_BASH: Final = r"""# Typer's own script takes bash's words, but bash splits run ids and URIs at their colons.
_triggerer_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" word before
    local -a words
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    local IFS=$'\n'
    COMPREPLY=($(IFS=' '; env COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) \
        _TRIGGERER_COMPLETE=complete_bash "$1" 2>/dev/null))
    # Bash replaces only what follows the last colon.
    word="${words[${#words[@]} - 1]}"
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
        before="${word%"${word##*:}"}"
        COMPREPLY=("${COMPREPLY[@]#"$before"}")
    fi
}
complete -o default -F _triggerer_completion triggerer
"""
_ZSH: Final = r"""#compdef triggerer
_triggerer_completion() {
    eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _TRIGGERER_COMPLETE=complete_zsh triggerer 2>/dev/null)
}
compdef _triggerer_completion triggerer
"""
_FISH: Final = r"""function __triggerer_completion
    env _TYPER_COMPLETE_ARGS=(commandline -cp) _TYPER_COMPLETE_FISH_ACTION=$argv[1] \
        _TRIGGERER_COMPLETE=complete_fish triggerer 2>/dev/null
end
complete --command triggerer --no-files --arguments "(__triggerer_completion get-args)" \
    --condition "__triggerer_completion is-args"
"""
_SCRIPTS: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
"""The script of each shell. A script sets the variables that Typer's completion reads."""


def completion(
    shell: Annotated[
        str | None,
        typer.Argument(metavar="SHELL", help="bash, zsh or fish. Default: the name in $SHELL."),
    ] = None,
    config: options.Config = None,
) -> None:
    """Print a script that makes your shell complete commands, DAG ids, run ids, assets and watchers.

    For bash, add to ~/.bashrc: source <(triggerer completion bash)

    For zsh, add to ~/.zshrc, after compinit: source <(triggerer completion zsh)

    For fish: triggerer completion fish > ~/.config/fish/completions/triggerer.fish

    Names are completed from the database that the completed command would use. With --config FILE, they come from
    FILE's database, unless the completed command has a --config of its own.
    """
    chosen = shell or Path(os.environ.get("SHELL", "")).name
    if chosen not in _SCRIPTS:
        wrong_use(
            f"SHELL is one of {', '.join(_SCRIPTS)}, not {chosen!r}{ending(chosen, _SCRIPTS)}"
        )
    typer.echo(_with_config(_SCRIPTS[chosen], config), nl=False)


def _with_config(script: str, config: Path | None) -> str:
    if config is None:
        return script
    from triggerer.config import CONFIG_VARIABLE

    return script.replace("env ", f"env {CONFIG_VARIABLE}={shlex.quote(str(config.resolve()))} ")
