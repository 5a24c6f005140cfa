# Completion of the firn command in bash: commands and options are asked of firn itself.
_firn() {
    local word=${COMP_WORDS[COMP_CWORD]}
    if [ "$COMP_CWORD" = 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$(firn --help 2>/dev/null | sed -n 's/^  \([a-z-]*\) .*/\1/p') --help --version" -- "$word")
    elif [ "${word#-}" != "$word" ]; then
        mapfile -t COMPREPLY < <(compgen -W "$(firn "${COMP_WORDS[1]}" --help 2>/dev/null | grep -oE '^  .{26}' | grep -oE -- '--?[a-z-]+')" -- "$word")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}
complete -o filenames -F _firn firn
