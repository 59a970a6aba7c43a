# shellcheck shell=bash
# Draws the figures of a run for docs/benchmarks.md. To be sourced by scripts/bench.

# draw FILE COMMANDS - has gnuplot draw docs/FILE on a white card, readable on light and dark pages.
draw() {
    install_missing gnuplot:gnuplot-nox
    gnuplot <<END
set terminal svg size 760,300 font 'sans-serif,13' background '#ffffff'
set output 'docs/$1'
set border 3 lc rgb '#666666'
set tics nomirror
set grid ytics lc rgb '#dddddd'
$2
END
    echo "docs/$1 is drawn"
}

# milliseconds WHAT - prints each tool with the median of its rounds, and with the lowest and the highest.
milliseconds() {
    local name
    for name in zklock "${peers[@]}"; do
        echo "$name $(for of in median lowest highest; do
            "$of" <"$work/$1-$name" | awk '{ printf "%.3f ", 1000 * $1 }'
        done)"
    done
}

# draw_comparison - draws the times of compare.
draw_comparison() {
    milliseconds free >"$work/free.data"
    milliseconds handover >"$work/handover.data"
    # The times lie between a millisecond and a second.
    draw bench-peers.svg "
        set logscale y
        set style data histograms
        set style histogram errorbars gap 1.5 linewidth 1
        set style fill solid 0.85 border -1
        set ylabel 'milliseconds, logarithmic'
        set key top left
        plot '$work/free.data' using 2:3:4:xtic(1) title 'a free lock' lc rgb '#3b6ea5', \
            '$work/handover.data' using 2:3:4 title 'hand-over in a queue of $contenders' lc rgb '#e0a030'"
}

# draw_cost - draws the bytes of a hand-over by the length of the queue, which `cost` has written to cost.data.
draw_cost() {
    draw bench-queue.svg "
        set logscale x
        set yrange [0:*]
        set xlabel 'contenders in the queue'
        set ylabel 'bytes for each hand-over'
        set key bottom right
        plot '$work/cost.data' using 1:2 with linespoints pt 7 lc rgb '#3b6ea5' title 'to the server', \
            '$work/cost.data' using 1:3 with linespoints pt 7 lc rgb '#e0a030' title 'from the server'"
}
