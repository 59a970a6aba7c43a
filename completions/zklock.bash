_zklock() {
    local i cur prev opts cmd
    COMPREPLY=()
    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
        cur="$2"
    else
        cur="${COMP_WORDS[COMP_CWORD]}"
    fi
    prev="$3"
    cmd=""
    opts=""

    for i in "${COMP_WORDS[@]:0:COMP_CWORD}"
    do
        case "${cmd},${i}" in
            ",$1")
                cmd="zklock"
                ;;
            *)
                ;;
        esac
    done

    case "${cmd}" in
        zklock)
            opts="-n -w -E -e -x -s -p -k -z -q -v -h -V -c --nb --nonblock --wait --timeout --lock-delay --conflict-exit-code --exclusive --shared --permits --and --dialect --describe --once-per --publish-command --max-run --kill-after --signal --wait-descendants --zookeeper --connect-timeout --config --tls --tls-ca --tls-cert --tls-key --tls-no-verify-hostname --auth --auth-file --session-timeout --acl --quiet --verbose --help --version --command"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 1 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --timeout)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                --wait)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                -w)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                --lock-delay)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                --conflict-exit-code)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                -E)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                --permits)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                -p)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                --and)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                --dialect)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                --describe)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                --once-per)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                --max-run)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                --kill-after)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                -k)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                --signal)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                --zookeeper)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                -z)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                --connect-timeout)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                --config)
                    local oldifs
                    if [ -n "${IFS+x}" ]; then
                        oldifs="$IFS"
                    fi
                    IFS=$'\n'
                    COMPREPLY=($(compgen -f "${cur}"))
                    if [ -n "${oldifs+x}" ]; then
                        IFS="$oldifs"
                    fi
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o filenames
                    fi
                    return 0
                    ;;
                --tls-ca)
                    local oldifs
                    if [ -n "${IFS+x}" ]; then
                        oldifs="$IFS"
                    fi
                    IFS=$'\n'
                    COMPREPLY=($(compgen -f "${cur}"))
                    if [ -n "${oldifs+x}" ]; then
                        IFS="$oldifs"
                    fi
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o filenames
                    fi
                    return 0
                    ;;
                --tls-cert)
                    local oldifs
                    if [ -n "${IFS+x}" ]; then
                        oldifs="$IFS"
                    fi
                    IFS=$'\n'
                    COMPREPLY=($(compgen -f "${cur}"))
                    if [ -n "${oldifs+x}" ]; then
                        IFS="$oldifs"
                    fi
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o filenames
                    fi
                    return 0
                    ;;
                --tls-key)
                    local oldifs
                    if [ -n "${IFS+x}" ]; then
                        oldifs="$IFS"
                    fi
                    IFS=$'\n'
                    COMPREPLY=($(compgen -f "${cur}"))
                    if [ -n "${oldifs+x}" ]; then
                        IFS="$oldifs"
                    fi
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o filenames
                    fi
                    return 0
                    ;;
                --auth)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                --auth-file)
                    local oldifs
                    if [ -n "${IFS+x}" ]; then
                        oldifs="$IFS"
                    fi
                    IFS=$'\n'
                    COMPREPLY=($(compgen -f "${cur}"))
                    if [ -n "${oldifs+x}" ]; then
                        IFS="$oldifs"
                    fi
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o filenames
                    fi
                    return 0
                    ;;
                --session-timeout)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                --acl)
                    COMPREPLY=("${cur}")
                    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
                        compopt -o nospace
                    fi
                    return 0
                    ;;
                --command)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -c)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
    esac
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _zklock -o nosort -o bashdefault -o default zklock
else
    complete -F _zklock -o bashdefault -o default zklock
fi

# Adds the paths in ZooKeeper that begin with this: none if no servers are named or they do not answer at once.
_zklock_paths() {
    local i servers= words=() program=$1
    [[ $2 == /* ]] || return
    # COMP_WORDS has no connect string in one piece.
    read -ra words <<<"${COMP_LINE:0:COMP_POINT}"
    for ((i = 1; i < ${#words[@]}; i++)); do
        case ${words[i]} in
            -z|--zookeeper) servers=${words[i + 1]} ;;
            -z*) servers=${words[i]#-z} ;;
            --zookeeper=*) servers=${words[i]#*=} ;;
        esac
    done
    # As it is typed, and a substitution is not to be executed by TAB.
    case $program in
        \~/*|\$HOME/*) program=$HOME/${program#*/} ;;
    esac
    mapfile -t words < <("$program" list ${servers:+-z "$servers"} --complete "$2" 2>/dev/null </dev/null)
    COMPREPLY+=("${words[@]}")
    [[ ${COMPREPLY-} == */ ]] && compopt -o nospace
}

# COMMAND completes as it would without zklock. LOCK is the first word that begins with a slash:
# bash cuts words at colons and at equals signs, as in zk1:2181 and in --signal=INT.
_zklock_or_command() {
    local i lock=0 word value=$2 option=$3 before= options=
    if ((COMP_CWORD == 1)) && [[ $2 == [a-z]* ]]; then
        mapfile -t COMPREPLY < <(compgen -W 'hold status list break check fence' -- "$2")
        compopt +o bashdefault +o default
        return
    fi
    if [[ ${COMP_WORDS[1]} == fence ]] && ((COMP_CWORD > 1)); then
        _zklock_fence "$2"
        return
    fi
    case ${COMP_WORDS[1]} in
        hold) options='--while --no-signal --signal -k --kill-after -n --nonblock --nb -w --timeout --wait --lock-delay -E --conflict-exit-code -x --exclusive -e -s --shared -p --permits --and --dialect --describe -z --zookeeper --connect-timeout --config --tls --tls-ca --tls-cert --tls-key --tls-no-verify-hostname --auth --auth-file --session-timeout --acl -q --quiet -v --verbose -h --help' ;;
        status) options='--json --watch -z --zookeeper --connect-timeout --config --tls --tls-ca --tls-cert --tls-key --tls-no-verify-hostname --auth --auth-file -q --quiet -v --verbose -h --help' ;;
        list) options='--json -z --zookeeper --connect-timeout --config --tls --tls-ca --tls-cert --tls-key --tls-no-verify-hostname --auth --auth-file -q --quiet -v --verbose -h --help' ;;
        break) options='--node --force -w --timeout -z --zookeeper --connect-timeout --config --tls --tls-ca --tls-cert --tls-key --tls-no-verify-hostname --auth --auth-file -q --quiet -v --verbose -h --help' ;;
        check) options='--json -z --zookeeper --connect-timeout --config --tls --tls-ca --tls-cert --tls-key --tls-no-verify-hostname --auth --auth-file --session-timeout -q --quiet -v --verbose -h --help' ;;
    esac
    if [[ $options ]] && ((COMP_CWORD > 1)); then
        [[ $2 == -* ]] && mapfile -t COMPREPLY < <(compgen -W "$options" -- "$2")
        _zklock_paths "$1" "$2"
        # LOCK is no file.
        compopt +o bashdefault +o default
        return
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        case $word in
            -w|--timeout|--wait|--lock-delay|-E|--conflict-exit-code|-p|--permits|--and|--dialect|--describe|--once-per|-c|--command|--max-run|-k|--kill-after|--signal|-z|--zookeeper|--connect-timeout|--config|--tls-ca|--tls-cert|--tls-key|--auth|--auth-file|--session-timeout|--acl)
                [[ ${COMP_WORDS[i + 1]} == = ]] && ((++i))
                ((++i)) ;;
            --) ((lock && ++i)) && break ;;
            -*) ;;
            /*) ((lock++)) && break ;;
            *) ((lock)) && break ;;
        esac
    done
    if ((i > COMP_CWORD)); then
        # The value of an option.
        [[ $value == = ]] && value=
        [[ $option == = ]] && option=${COMP_WORDS[COMP_CWORD - 2]}
        case $option in
            --dialect)
                [[ $value == *,* ]] && before=${value%,*},
                mapfile -t COMPREPLY < <(compgen -P "$before" -W 'curator curator-rw kazoo single' -- "${value##*,}") ;;
            --signal)
                [[ $value == SIG* ]] && before=SIG
                mapfile -t COMPREPLY < <(compgen -P "$before" -W 'HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS' -- "${value#SIG}") ;;
            --and) _zklock_paths "$1" "$value" ;;
            *) _zklock "$1" "$value" "$option" ;;
        esac
    elif ((!lock)) || [[ $i -eq $COMP_CWORD && $2 == -* ]]; then
        _zklock "$@"
        _zklock_paths "$1" "$2"
        # LOCK is no file.
        compopt +o bashdefault +o default
    elif ((i == COMP_CWORD)); then
        mapfile -t COMPREPLY < <(compgen -c -- "$2")
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$i"
    fi
}
# FILE is the first word that is no option, and COMMAND the second.
_zklock_fence() {
    local i file=0
    for ((i = 2; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
            --token|-k|--kill-after)
                [[ ${COMP_WORDS[i + 1]} == = ]] && ((++i))
                ((++i)) ;;
            --) ((file && ++i)) && break ;;
            -*) ;;
            *) ((file++)) && break ;;
        esac
    done
    if ((i > COMP_CWORD)); then
        # The value of an option.
        compopt +o bashdefault +o default
    elif ((i == COMP_CWORD)) && [[ $1 == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W '--token -k --kill-after -q --quiet -v --verbose -h --help' -- "$1")
    elif ((i == COMP_CWORD && file)); then
        mapfile -t COMPREPLY < <(compgen -c -- "$1")
    elif ((file)) && declare -F _command_offset >/dev/null; then
        _command_offset "$i"
    fi
}
complete -F _zklock_or_command -o bashdefault -o default zklock
