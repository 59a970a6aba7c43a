complete -c zklock -s z -l zookeeper -d 'ZooKeeper servers, separated by commas, and an optional chroot' -r -f
complete -c zklock -l connect-timeout -d 'Give up when no server has answered for this long at the start' -r -f
complete -c zklock -l session-timeout -d 'Session timeout to ask for' -r -f
complete -c zklock -s p -l permits -d 'Take one of N permits: at most N hold at a time' -r -f
complete -c zklock -l and -d 'Take this lock, too: all or none; can be repeated' -r -f
complete -c zklock -l dialect -d 'Whose node names to use: curator, curator-rw, kazoo' -r -f
complete -c zklock -s w -l timeout -d 'Give up after this long; without it, wait for ever' -r -f
complete -c zklock -s E -l conflict-exit-code -d 'Exit status of giving up, 0 to 255' -r -f
complete -c zklock -l describe -d 'A text that others see while the lock is held or waited for' -r -f
complete -c zklock -s c -l command -d 'Run this through $SHELL -c (or /bin/sh -c) instead of COMMAND' -r -f -a "(__fish_complete_command)"
complete -c zklock -l signal -d 'Signal that stops the command when the lock is lost, or after --max-run' -r -f
complete -c zklock -s k -l kill-after -d 'Time from the stop signal to SIGKILL [default: 5s, or less]' -r -f
complete -c zklock -l max-run -d 'Stop the command when it has run for this long, and exit with 124' -r -f
complete -c zklock -l on-lost -d 'Run this through $SHELL -c when the lock was lost and the command has been stopped' -r -f -a "(__fish_complete_command)"
complete -c zklock -s x -l exclusive -d 'Take the lock for one holder (the default)'
complete -c zklock -s s -l shared -d 'Take a read lock: readers hold together, a writer (--exclusive) alone'
complete -c zklock -s n -l nonblock -d 'Give up at once when the lock is not free'
complete -c zklock -l publish-command -d 'Show the command\'s arguments to others, too'
complete -c zklock -l wait-descendants -d 'Hold the lock until every descendant of the command has ended, not just the command'
complete -c zklock -s q -l quiet -d 'Be silent while waiting and when the lock is not free; errors are still printed'
complete -c zklock -s v -l verbose -d 'Say more; give it twice for the ZooKeeper client\'s messages, too'
complete -c zklock -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zklock -s V -l version -d 'Print version'
complete -c zklock -n "string match -q -- '/*' (commandline -opc)" -x -a '(__fish_complete_subcommand --fcs-skip=2 -- -z --zookeeper --connect-timeout --session-timeout -p --permits --and --dialect -w --timeout -E --conflict-exit-code --describe -c --command --signal -k --kill-after --max-run --on-lost)' -d Command
