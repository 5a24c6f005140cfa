#compdef firn
# Completion of the firn command in zsh: commands and options are asked of firn itself.
if (( CURRENT == 2 )); then
    compadd -- ${(f)"$(firn --help 2>/dev/null | sed -n 's/^  \([a-z-]*\) .*/\1/p')"} --help --version
elif [[ $PREFIX == -* ]]; then
    compadd -- ${(f)"$(firn $words[2] --help 2>/dev/null | grep -oE '^  .{26}' | grep -oE -- '--?[a-z-]+')"}
else
    _files
fi
