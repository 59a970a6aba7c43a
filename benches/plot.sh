# shellcheck shell=bash
# Draws the figures of a run for docs/benchmarks.md. To be sourced by scripts/bench.

# draw FILE HEIGHT COMMANDS - has gnuplot draw docs/FILE on a white card, readable on light and dark pages.
draw() {
    install_missing gnuplot:gnuplot-nox
    gnuplot <<END
set terminal svg size 760,$2 font 'sans-serif,13' background '#ffffff'
set output 'docs/$1'
set border 3 lc rgb '#666666'
set tics nomirror
set grid lc rgb '#dddddd'
$3
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
    # A dot is a median, which a number says too, and a line is the range of the rounds. The times lie between a millisecond
    # and a second, so that only a logarithmic axis shows all; bars have no meaning on one.
    draw bench-peers.svg 400 "
        set logscale x
        set xrange [1:1000]
        set yrange [*:*] reverse
        set offsets 0, 0, 0.5, 0.5
        set grid noytics
        set ytics scale 0
        set xlabel 'milliseconds, logarithmic'
        set key outside top center horizontal
        name(tool) = tool eq 'floor' ? 'floor (the minimum)' : tool
        figure(median) = sprintf(median < 100 ? '%.1f' : '%.0f', median)
        plot '$work/free.data' using 2:(\$0-0.18):3:4:ytic(name(strcol(1))) with xerrorbars pt 7 ps 0.8 lw 1.5 \
                lc rgb '#3b6ea5' title 'a free lock', \
            '' using 4:(\$0-0.18):(figure(\$2)) with labels left offset 0.8,0 font ',11' tc rgb '#3b6ea5' notitle, \
            '$work/handover.data' using 2:(\$0+0.18):3:4 with xerrorbars pt 5 ps 0.7 lw 1.5 \
                lc rgb '#b86e00' title 'hand-over in a queue of $contenders', \
            '' using 4:(\$0+0.18):(figure(\$2)) with labels left offset 0.8,0 font ',11' tc rgb '#b86e00' notitle"
}

# draw_cost - draws the bytes of a hand-over by the length of the queue, which `cost` has written to cost.data.
draw_cost() {
    draw bench-queue.svg 300 "
        set logscale x
        set grid noxtics
        set yrange [0:*]
        set xlabel 'contenders in the queue'
        set ylabel 'bytes for each hand-over'
        set key bottom right
        plot '$work/cost.data' using 1:2 with linespoints pt 7 lc rgb '#3b6ea5' title 'to the server', \
            '$work/cost.data' using 1:3 with linespoints pt 7 lc rgb '#e0a030' title 'from the server'"
}
