# Completion of the firn command in fish: what may follow is asked of firn itself; where it knows nothing, a file's name.
function __firn_complete
    set -l words (commandline -opc)
    firn --complete $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c firn -n 'test -n "$(__firn_complete)"' -f -a '(__firn_complete)'
