# Completion for bash. The command lists its verbs and options itself (--options), so this
# names none of them.

_deltawire()
{
    local current=$2 verb=${COMP_WORDS[1]} words
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        words=$("$1" --options 2>/dev/null)
        mapfile -t COMPREPLY < <(compgen -W "$words --help --version" -- "$current")
        return
    fi
    # values and arguments are most often paths: -o default completes them
    [ "${current#-}" != "$current" ] || return 0
    words=$("$1" --options "$verb" 2>/dev/null | cut -f 3 | sed 's/^/--/')
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}

complete -o default -F _deltawire deltawire
