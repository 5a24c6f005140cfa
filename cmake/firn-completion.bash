# Completion of the firn command in bash: what may follow is asked of firn itself; where it knows nothing, a file's name.
_firn() {
    local word=${COMP_WORDS[COMP_CWORD]} IFS=$'\n'
    mapfile -t COMPREPLY < <(firn --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f1)
    if [ ${#COMPREPLY[@]} = 0 ]; then
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}
complete -F _firn firn
