#compdef firn
# Completion of the firn command in zsh: what may follow is asked of firn itself; where it knows nothing, a file's name.
local line
local -a shown plain
for line in ${(f)"$(firn --complete "${(@)words[2,CURRENT]}" 2>/dev/null)"}; do
    plain+=("${line%%$'\t'*}")
    shown+=("${line/$'\t'/  -- }")
done
if (( $#plain )); then
    compadd -l -d shown -- $plain
else
    _files
fi
