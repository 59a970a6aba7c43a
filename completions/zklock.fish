complete -c zklock -n __zklock_options -s w -l timeout -l wait -d 'Give up after this time (75); else wait forever' -r -f
complete -c zklock -n __zklock_options -l lock-delay -d 'Wait this long after a holder that did not end cleanly' -r -f
complete -c zklock -n __zklock_options -s E -l conflict-exit-code -d 'Exit with N instead of 75' -r -f
complete -c zklock -n __zklock_options -s p -l permits -d 'Take one of N permits' -r -f
complete -c zklock -n __zklock_options -l and -d 'Also take this lock: all or none; can be repeated' -r -f
complete -c zklock -n __zklock_options -l dialect -d 'Node names to use: curator, curator-rw, kazoo; or single' -r -f
complete -c zklock -n __zklock_options -l describe -d 'Text to show in zklock status' -r -f
complete -c zklock -n __zklock_options -l once-per -d 'Skip if a successful run began in this time' -r -f
complete -c zklock -n __zklock_options -l max-run -d 'Stop the command after this time (124)' -r -f
complete -c zklock -n __zklock_options -s k -l kill-after -d 'Time from the stop signal to SIGKILL [default: 5s, or less]' -r -f
complete -c zklock -n __zklock_options -l signal -d 'Stop signal: after a loss, --max-run or zklock break' -r -f
complete -c zklock -n __zklock_options -s z -l zookeeper -d 'HOST:PORT,...[/CHROOT], or localhost:2181' -r -f
complete -c zklock -n __zklock_options -l connect-timeout -d 'Give up if no server answers within this time at the start' -r -f
complete -c zklock -n __zklock_options -l config -d 'Read this configuration file and no other; /dev/null stands for no file' -r -F
complete -c zklock -n __zklock_options -l tls-ca -d 'Trust the CAs whose certificates are in this file [default: the CAs of the system]' -r -F
complete -c zklock -n __zklock_options -l tls-cert -d 'Show this certificate to servers that ask for a certificate' -r -F
complete -c zklock -n __zklock_options -l tls-key -d 'Private key of --tls-cert [default: in the same file]' -r -F
complete -c zklock -n __zklock_options -l auth -d 'Log in, as in digest:USER:PASSWORD; every user can see it with ps' -r -f
complete -c zklock -n __zklock_options -l auth-file -d 'Log in with this file, one SCHEME:CREDENTIAL a line' -r -F
complete -c zklock -n __zklock_options -l session-timeout -d 'Session timeout to ask for' -r -f
complete -c zklock -n __zklock_options -l acl -d 'Who else may use the nodes that zklock creates: open, creator, read' -r -f
complete -c zklock -n __zklock_options -s c -l command -d 'Run CMD with a shell' -r -f -a "(__fish_complete_command)"
complete -c zklock -n __zklock_options -s n -l nonblock -l nb -d 'Give up at once if the lock is not free (75)'
complete -c zklock -n __zklock_options -s x -s e -l exclusive -d 'Take the lock for one holder (the default)'
complete -c zklock -n __zklock_options -s s -l shared -d 'Take a read lock'
complete -c zklock -n __zklock_options -l publish-command -d 'Show the command\'s arguments in zklock status'
complete -c zklock -n __zklock_options -l wait-descendants -d 'Hold the lock until all descendants end'
complete -c zklock -n __zklock_options -l tls -d 'Encrypt the connection with TLS 1.2 or 1.3'
complete -c zklock -n __zklock_options -l tls-no-verify-hostname -d 'Accept a certificate for another name'
complete -c zklock -n __zklock_options -s q -l quiet -d 'Say nothing about the wait; print errors only'
complete -c zklock -n __zklock_options -s v -l verbose -d 'Say what zklock does; -vv also why, -vvv also the traffic'
complete -c zklock -n __zklock_options -s h -l help -d 'Print a summary (-h), or everything (--help)'
complete -c zklock -n __zklock_options -s V -l version -d 'Print the version and its commit'

# Whether the cursor is behind a subcommand: that of this name, or any.
function __zklock_subcommand
    set -l words (commandline -opc)
    set -l names hold status list break check fence
    set -q argv[1]
    and set names $argv
    set -q words[2]
    and contains -- $words[2] $names
end

# Whether the cursor is in the first word.
function __zklock_first
    test (count (commandline -opc)) -eq 1
end

# Whether the options of the main job belong at the cursor.
function __zklock_options
    not __zklock_subcommand
    and not __zklock_command >/dev/null
end

# Prints COMMAND and what follows it, up to the cursor; fails when the cursor is before COMMAND.
function __zklock_command
    set -l words (commandline -opc) (commandline -ct)
    set -l has_lock no
    set -e words[1]
    if __zklock_subcommand fence
        set -e words[1]
    else if __zklock_subcommand
        return 1
    end
    while set -q words[1]
        switch $words[1]
            case -w --timeout --wait --lock-delay -E --conflict-exit-code -p --permits --and --dialect --describe --once-per -c --command --max-run -k --kill-after --signal -z --zookeeper --connect-timeout --config --tls-ca --tls-cert --tls-key --auth --auth-file --session-timeout --acl --token
                set -e words[1]
            case --
                if test $has_lock = yes
                    set -e words[1]
                    break
                end
            case '-*'
            case '*'
                test $has_lock = yes
                and break
                set has_lock yes
        end
        set -e words[1]
    end
    set -q words[1]
    and printf '%s\n' $words
end

# As they are, or with SIG before them where that is begun.
function __zklock_signals
    set -l names HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS
    string match -q -- '*SIG*' (commandline -ct)
    and set names SIG$names
    printf '%s\n' $names
end

# Prints the paths in ZooKeeper that begin with the word at the cursor: none if no servers are named or they do not answer
# at once.
function __zklock_paths
    set -l begun (commandline -ct | string replace -r -- '^--[a-z]+=' '')
    string match -q -- '/*' $begun
    or return
    set -l words (commandline -opc)
    set -l servers
    for i in (seq 2 (count $words))
        switch $words[$i]
            case -z --zookeeper
                set servers -z $words[(math $i + 1)]
            case '-z*'
                set servers $words[$i]
            case '--zookeeper=*'
                set servers $words[$i]
        end
    end
    # As it is typed, and a substitution is not to be executed by TAB.
    set -l program (string replace -r -- '^(~|\$HOME)/' "$HOME/" $words[1])
    command $program list $servers --complete $begun 2>/dev/null </dev/null
end

# LOCK is no file, but FILE is.
complete -c zklock -n 'not __zklock_command >/dev/null; and not __zklock_subcommand fence' -f -a '(__zklock_paths)'

# The values of three options, and COMMAND, which completes as it would without zklock.
complete -c zklock -n __zklock_options -l and -x -a '(__zklock_paths)'
complete -c zklock -n __zklock_options -l dialect -x -a '(__fish_append , curator curator-rw kazoo single)'
complete -c zklock -n __zklock_options -l signal -x -a '(__zklock_signals)'
complete -c zklock -n '__zklock_command >/dev/null' -x -a '(__fish_complete_subcommand --commandline (__zklock_command))' -d Command
complete -c zklock -n __zklock_first -a hold -d 'Hold a lock for a script or a service, without a command'
complete -c zklock -n '__zklock_subcommand hold' -l while -x -d 'Hold until this process ends, whatever standard input is'
complete -c zklock -n '__zklock_subcommand hold' -l no-signal -d 'Send no signal to the caller when the lock is lost'
complete -c zklock -n '__zklock_subcommand hold' -l signal -x -d 'Signal that the caller gets when the lock is lost'
complete -c zklock -n '__zklock_subcommand hold' -s k -l kill-after -x -d 'Time from that signal to the end of the lock [default: 5s, or less]'
complete -c zklock -n '__zklock_subcommand hold' -s n -l nonblock -l nb -d 'Give up at once if the lock is not free (75)'
complete -c zklock -n '__zklock_subcommand hold' -s w -l timeout -l wait -x -d 'Give up after this time (75); else wait forever'
complete -c zklock -n '__zklock_subcommand hold' -l lock-delay -x -d 'Wait this long after a holder that did not end cleanly'
complete -c zklock -n '__zklock_subcommand hold' -s E -l conflict-exit-code -x -d 'Exit with N instead of 75'
complete -c zklock -n '__zklock_subcommand hold' -s x -l exclusive -s e -d 'Take the lock for one holder (the default)'
complete -c zklock -n '__zklock_subcommand hold' -s s -l shared -d 'Take a read lock'
complete -c zklock -n '__zklock_subcommand hold' -s p -l permits -x -d 'Take one of N permits'
complete -c zklock -n '__zklock_subcommand hold' -l and -x -d 'Also take this lock: all or none; can be repeated'
complete -c zklock -n '__zklock_subcommand hold' -l dialect -x -d 'Node names to use: curator, curator-rw, kazoo; or single'
complete -c zklock -n '__zklock_subcommand hold' -l describe -x -d 'Text to show in zklock status'
complete -c zklock -n '__zklock_subcommand hold' -s z -l zookeeper -x -d 'HOST:PORT,...[/CHROOT], or localhost:2181'
complete -c zklock -n '__zklock_subcommand hold' -l connect-timeout -x -d 'Give up if no server answers within this time at the start'
complete -c zklock -n '__zklock_subcommand hold' -l config -r -d 'Read this configuration file and no other; /dev/null stands for no file'
complete -c zklock -n '__zklock_subcommand hold' -l tls -d 'Encrypt the connection with TLS 1.2 or 1.3'
complete -c zklock -n '__zklock_subcommand hold' -l tls-ca -r -d 'Trust the CAs whose certificates are in this file [default: the CAs of the system]'
complete -c zklock -n '__zklock_subcommand hold' -l tls-cert -r -d 'Show this certificate to servers that ask for a certificate'
complete -c zklock -n '__zklock_subcommand hold' -l tls-key -r -d 'Private key of --tls-cert [default: in the same file]'
complete -c zklock -n '__zklock_subcommand hold' -l tls-no-verify-hostname -d 'Accept a certificate for another name'
complete -c zklock -n '__zklock_subcommand hold' -l auth -x -d 'Log in, as in digest:USER:PASSWORD; every user can see it with ps'
complete -c zklock -n '__zklock_subcommand hold' -l auth-file -r -d 'Log in with this file, one SCHEME:CREDENTIAL a line'
complete -c zklock -n '__zklock_subcommand hold' -l session-timeout -x -d 'Session timeout to ask for'
complete -c zklock -n '__zklock_subcommand hold' -l acl -x -d 'Who else may use the nodes that zklock creates: open, creator, read'
complete -c zklock -n '__zklock_subcommand hold' -s q -l quiet -d 'Say nothing about the wait; print errors only'
complete -c zklock -n '__zklock_subcommand hold' -s v -l verbose -d 'Say what zklock does; -vv also why, -vvv also the traffic'
complete -c zklock -n '__zklock_subcommand hold' -s h -l help -d 'Print a summary (-h), or everything (--help)'
complete -c zklock -n __zklock_first -a status -d 'Show the holders and the waiters of locks'
complete -c zklock -n '__zklock_subcommand status' -l json -d 'Print JSON, as docs/status.schema.json describes it'
complete -c zklock -n '__zklock_subcommand status' -l watch -d 'Print again whenever something changes, until interrupted'
complete -c zklock -n '__zklock_subcommand status' -s z -l zookeeper -x -d 'HOST:PORT,...[/CHROOT], or localhost:2181'
complete -c zklock -n '__zklock_subcommand status' -l connect-timeout -x -d 'Give up if no server answers within this time at the start'
complete -c zklock -n '__zklock_subcommand status' -l config -r -d 'Read this configuration file and no other; /dev/null stands for no file'
complete -c zklock -n '__zklock_subcommand status' -l tls -d 'Encrypt the connection with TLS 1.2 or 1.3'
complete -c zklock -n '__zklock_subcommand status' -l tls-ca -r -d 'Trust the CAs whose certificates are in this file [default: the CAs of the system]'
complete -c zklock -n '__zklock_subcommand status' -l tls-cert -r -d 'Show this certificate to servers that ask for a certificate'
complete -c zklock -n '__zklock_subcommand status' -l tls-key -r -d 'Private key of --tls-cert [default: in the same file]'
complete -c zklock -n '__zklock_subcommand status' -l tls-no-verify-hostname -d 'Accept a certificate for another name'
complete -c zklock -n '__zklock_subcommand status' -l auth -x -d 'Log in, as in digest:USER:PASSWORD; every user can see it with ps'
complete -c zklock -n '__zklock_subcommand status' -l auth-file -r -d 'Log in with this file, one SCHEME:CREDENTIAL a line'
complete -c zklock -n '__zklock_subcommand status' -s q -l quiet -d 'Print nothing; exit with 0 if one of the locks is held, else 1'
complete -c zklock -n '__zklock_subcommand status' -s v -l verbose -d 'Say what zklock does; -vv also why, -vvv also the traffic'
complete -c zklock -n '__zklock_subcommand status' -s h -l help -d 'Print a summary (-h), or everything (--help)'
complete -c zklock -n __zklock_first -a list -d 'List the locks that are in use'
complete -c zklock -n '__zklock_subcommand list' -l json -d 'Print JSON, as docs/list.schema.json describes it'
complete -c zklock -n '__zklock_subcommand list' -s z -l zookeeper -x -d 'HOST:PORT,...[/CHROOT], or localhost:2181'
complete -c zklock -n '__zklock_subcommand list' -l connect-timeout -x -d 'Give up if no server answers within this time at the start'
complete -c zklock -n '__zklock_subcommand list' -l config -r -d 'Read this configuration file and no other; /dev/null stands for no file'
complete -c zklock -n '__zklock_subcommand list' -l tls -d 'Encrypt the connection with TLS 1.2 or 1.3'
complete -c zklock -n '__zklock_subcommand list' -l tls-ca -r -d 'Trust the CAs whose certificates are in this file [default: the CAs of the system]'
complete -c zklock -n '__zklock_subcommand list' -l tls-cert -r -d 'Show this certificate to servers that ask for a certificate'
complete -c zklock -n '__zklock_subcommand list' -l tls-key -r -d 'Private key of --tls-cert [default: in the same file]'
complete -c zklock -n '__zklock_subcommand list' -l tls-no-verify-hostname -d 'Accept a certificate for another name'
complete -c zklock -n '__zklock_subcommand list' -l auth -x -d 'Log in, as in digest:USER:PASSWORD; every user can see it with ps'
complete -c zklock -n '__zklock_subcommand list' -l auth-file -r -d 'Log in with this file, one SCHEME:CREDENTIAL a line'
complete -c zklock -n '__zklock_subcommand list' -s q -l quiet -d 'Show no progress; the list and errors are still printed'
complete -c zklock -n '__zklock_subcommand list' -s v -l verbose -d 'Say what zklock does; -vv also why, -vvv also the traffic'
complete -c zklock -n '__zklock_subcommand list' -s h -l help -d 'Print a summary (-h), or everything (--help)'
complete -c zklock -n __zklock_first -a break -d 'Ask a holder to stop, and to release the lock'
complete -c zklock -n '__zklock_subcommand break' -l node -x -d 'The contender\'s node, by its name or its path'
complete -c zklock -n '__zklock_subcommand break' -l force -d 'Delete its node, even if its command still runs'
complete -c zklock -n '__zklock_subcommand break' -s w -l timeout -x -d 'How long to wait until the contender has gone'
complete -c zklock -n '__zklock_subcommand break' -s z -l zookeeper -x -d 'HOST:PORT,...[/CHROOT], or localhost:2181'
complete -c zklock -n '__zklock_subcommand break' -l connect-timeout -x -d 'Give up if no server answers within this time at the start'
complete -c zklock -n '__zklock_subcommand break' -l config -r -d 'Read this configuration file and no other; /dev/null stands for no file'
complete -c zklock -n '__zklock_subcommand break' -l tls -d 'Encrypt the connection with TLS 1.2 or 1.3'
complete -c zklock -n '__zklock_subcommand break' -l tls-ca -r -d 'Trust the CAs whose certificates are in this file [default: the CAs of the system]'
complete -c zklock -n '__zklock_subcommand break' -l tls-cert -r -d 'Show this certificate to servers that ask for a certificate'
complete -c zklock -n '__zklock_subcommand break' -l tls-key -r -d 'Private key of --tls-cert [default: in the same file]'
complete -c zklock -n '__zklock_subcommand break' -l tls-no-verify-hostname -d 'Accept a certificate for another name'
complete -c zklock -n '__zklock_subcommand break' -l auth -x -d 'Log in, as in digest:USER:PASSWORD; every user can see it with ps'
complete -c zklock -n '__zklock_subcommand break' -l auth-file -r -d 'Log in with this file, one SCHEME:CREDENTIAL a line'
complete -c zklock -n '__zklock_subcommand break' -s q -l quiet -d 'Say nothing about a contender that is missing or stays'
complete -c zklock -n '__zklock_subcommand break' -s v -l verbose -d 'Say what zklock does; -vv also why, -vvv also the traffic'
complete -c zklock -n '__zklock_subcommand break' -s h -l help -d 'Print a summary (-h), or everything (--help)'
complete -c zklock -n __zklock_first -a check -d 'Check that the servers meet zklock\'s requirements'
complete -c zklock -n '__zklock_subcommand check' -l json -d 'Print JSON, as docs/check.schema.json describes it'
complete -c zklock -n '__zklock_subcommand check' -s z -l zookeeper -x -d 'HOST:PORT,...[/CHROOT], or localhost:2181'
complete -c zklock -n '__zklock_subcommand check' -l connect-timeout -x -d 'How long to wait until a server answers; 0 tries once, for health checks'
complete -c zklock -n '__zklock_subcommand check' -l config -r -d 'Read this configuration file and no other; /dev/null stands for no file'
complete -c zklock -n '__zklock_subcommand check' -l tls -d 'Encrypt the connection with TLS 1.2 or 1.3'
complete -c zklock -n '__zklock_subcommand check' -l tls-ca -r -d 'Trust the CAs whose certificates are in this file [default: the CAs of the system]'
complete -c zklock -n '__zklock_subcommand check' -l tls-cert -r -d 'Show this certificate to servers that ask for a certificate'
complete -c zklock -n '__zklock_subcommand check' -l tls-key -r -d 'Private key of --tls-cert [default: in the same file]'
complete -c zklock -n '__zklock_subcommand check' -l tls-no-verify-hostname -d 'Accept a certificate for another name'
complete -c zklock -n '__zklock_subcommand check' -l auth -x -d 'Log in, as in digest:USER:PASSWORD; every user can see it with ps'
complete -c zklock -n '__zklock_subcommand check' -l auth-file -r -d 'Log in with this file, one SCHEME:CREDENTIAL a line'
complete -c zklock -n '__zklock_subcommand check' -l session-timeout -x -d 'Session timeout to ask for'
complete -c zklock -n '__zklock_subcommand check' -s q -l quiet -d 'Print nothing; the exit status tells'
complete -c zklock -n '__zklock_subcommand check' -s v -l verbose -d 'Say what zklock does; -vv also why, -vvv also the traffic'
complete -c zklock -n '__zklock_subcommand check' -s h -l help -d 'Print a summary (-h), or everything (--help)'
complete -c zklock -n __zklock_first -a fence -d 'Refuse the work of an earlier holder on another host'
complete -c zklock -n '__zklock_subcommand fence; and not __zklock_command >/dev/null' -l token -x -d 'Fencing token of the lock\'s holder'
complete -c zklock -n '__zklock_subcommand fence; and not __zklock_command >/dev/null' -s k -l kill-after -x -d 'Time from the stop signal, SIGTERM, to SIGKILL'
complete -c zklock -n '__zklock_subcommand fence; and not __zklock_command >/dev/null' -s q -l quiet -d 'Be silent while waiting; errors are still printed'
complete -c zklock -n '__zklock_subcommand fence; and not __zklock_command >/dev/null' -s v -l verbose -d 'Say what zklock does; -vv also why, -vvv also the traffic'
complete -c zklock -n '__zklock_subcommand fence; and not __zklock_command >/dev/null' -s h -l help -d 'Print a summary (-h), or everything (--help)'
