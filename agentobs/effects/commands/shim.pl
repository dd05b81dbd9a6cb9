# The shim of a command: runs the program of the same name that follows in PATH, and reports it to the recorder.
#
# It loads no module, because each would take longer than everything that the shim does. The first lines, written by
# shim_files.py, set:
#   $bin: the directories of the shims; $socket: the socket of the recorder; %known: programs by name, for a PATH that
#   contains none; $shell: the program of SHELL; $clock, $prctl: numbers of system calls, 0 if unknown;
#   $fionread: the request of ioctl for the readable bytes; $keep: the kept bytes at each end of a stream.
#
# The shim never fails: if the recorder does not answer, it executes the program in its own place.

my ($dir, $name) = $0 =~ m{^(.*)/([^/]*)\z}s ? ($1, $2) : ('', $0);
my $real = '';
if ($dir eq "$bin/shell") {
    $real = $shell;
} else {
    # The next program behind the last place of this directory, however PATH spells it: the shims of an outer recording may
    # also be there, and each would otherwise find the other one again.
    my @own = stat "$bin/path/$name";
    for my $each (split /:/, defined $ENV{PATH} ? $ENV{PATH} : '', -1) {
        my $file = ($each eq '' ? '.' : $each) . "/$name";
        my @found = stat $file or next;
        if (@own && "@found[0,1]" eq "@own[0,1]") { $real = '' }
        elsif ($real eq '' && -f _ && -x _) { $real = $file }
    }
    $real = $known{$name} if $real eq '' && defined $known{$name};
}
my @argv = ($dir eq "$bin/shell" ? $shell : $name, @ARGV);

sub run_real {
    exec {$real} @argv if $real ne '';
    my $missing = $real eq '' || !-e $real;
    syswrite STDERR, "$name: " . ($missing ? "command not found" : "cannot be executed") . "\n";
    exit($missing ? 127 : 126);
}

sub clock_ns {
    return 0 if !$clock;
    my $time = "\0" x 16;
    return 0 if syscall($clock, $_[0], $time) != 0;
    my ($seconds, $nanoseconds) = unpack 'qq', $time;
    return $seconds * 1000000000 + $nanoseconds;
}

# A message is a letter, the length of its fields, and its fields, each with its length.
sub report {
    my $kind = shift;
    my $fields = pack '(N/a*)*', @_;
    my $message = pack('a1N', $kind, length $fields) . $fields;
    my $sent = 0;
    while ($sent < length $message) {
        my $count = syswrite $connection, $message, length($message) - $sent, $sent;
        return 0 if !$count;
        $sent += $count;
    }
    return 1;
}

# If standard input is closed, Perl has opened this script in its place.
my @script = stat $0;
my @input = stat STDIN;
close STDIN if @script && @input && "@script[0,1]" eq "@input[0,1]";
# What each standard file is: only pipes and sockets are copied, because a terminal must stay one.
my @kinds = map {
    my @status = stat $_;
    !@status ? 'closed' : -t $_ ? 'terminal' : -f _ ? 'file' : -p _ ? 'pipe' : -S _ ? 'socket' : 'device'
} (*STDIN, *STDOUT, *STDERR);
# A file that this process opens must not take the place of a closed one.
run_real() if $real eq '' || grep { $_ eq 'closed' } @kinds;
$wanted_signal = $SIG{PIPE};
$SIG{PIPE} = 'IGNORE';
$is_connected = socket($connection, 1, 1, 0)
    && setsockopt($connection, $^O eq 'darwin' ? 0xffff : 1, $^O eq 'darwin' ? 0x1005 : 21, pack('qq', 0, 250000))
    && connect($connection, $^O eq 'darwin' ? pack('CCa104', 106, 1, $socket) : pack('Sa108', 1, $socket));

binmode $connection if $connection;
my @ancestors = ($$, getppid);
while (@ancestors < 24 && $ancestors[-1] > 1) {
    open my $status, '<', "/proc/$ancestors[-1]/stat" or last;
    sysread $status, my $text, 512 or last;
    push @ancestors, $text =~ /^.*\) \S+ (\d+)/s ? $1 : last;
}
my $directory = readlink '/proc/self/cwd';
$directory = $ENV{PWD} if !defined $directory && defined $ENV{PWD};
my $started = clock_ns(1);
$is_connected &&= report('S', 1, $name, $real, join(',', @ancestors), join(',', @kinds), $started,
    defined $directory ? $directory : '', @argv);
if (!$is_connected) {
    close $connection if $connection;
    # Counted at the end; without the directory, nobody observes any more.
    if (open my $missed, '>', "$bin/missed/$$") { close $missed }
    $SIG{PIPE} = defined $wanted_signal ? $wanted_signal : 'DEFAULT';
    run_real();
}

my @streams;
my @status_1 = stat STDOUT;
my @status_2 = stat STDERR;
my $is_merged = $kinds[1] =~ /pipe|socket|file/ && @status_2 && "@status_1[0,1]" eq "@status_2[0,1]";
for my $number (1, 2) {
    my $stream = {number => $number, total => 0, head => '', tail => '', wait => ''};
    if ($is_merged && $number == 2) {
        # The first stream contains both.
    } elsif ($kinds[$number] =~ /pipe|socket/) {
        pipe($stream->{from}, $stream->{to}) or undef $stream->{from};
        open $stream->{out}, '>&', $number == 1 ? *STDOUT : *STDERR if $stream->{from};
        binmode $stream->{$_} for grep { $stream->{$_} } qw(from out);  # PERLIO may have set another layer
    } elsif ($kinds[$number] eq 'file') {
        $stream->{start} = sysseek $number == 1 ? *STDOUT : *STDERR, 0, 1;
        my @status = stat($number == 1 ? *STDOUT : *STDERR);
        # Files that are opened for appending have no useful position before the first write.
        $stream->{start} = $status[7] if $stream->{start} == 0 && $status[7];
        open $stream->{file}, '<', "/proc/self/fd/$number" or undef $stream->{file};
    }
    push @streams, $stream;
}

# Signals that only this process gets are passed on. Those of a terminal reach the command, too.
my $has_terminal = open my $terminal, '<', '/dev/tty';
close $terminal if $has_terminal;
my ($child, @early);
my $wanted_child_signal = $SIG{CHLD};
$SIG{CHLD} = 'DEFAULT';
for my $signal (qw(HUP TERM USR1 USR2 ALRM), $has_terminal ? () : qw(INT QUIT)) {
    next if defined $SIG{$signal} && $SIG{$signal} eq 'IGNORE';
    $SIG{$signal} = sub { $child ? kill($signal, $child) : push @early, $signal };
    push @passed_on, $signal;
}

$child = fork;
if (!defined $child) {
    $SIG{$_} = 'DEFAULT' for @passed_on;
    run_real();
}
if ($child == 0) {
    $SIG{$_} = 'DEFAULT' for @passed_on;
    $SIG{CHLD} = $wanted_child_signal if defined $wanted_child_signal && $wanted_child_signal eq 'IGNORE';
    $SIG{PIPE} = defined $wanted_signal && $wanted_signal eq 'IGNORE' ? 'IGNORE' : 'DEFAULT';
    if ($prctl) {
        my $parent = $ancestors[0];
        syscall $prctl, 1, 9, 0, 0, 0;  # PR_SET_PDEATHSIG: if the shim is killed, so is the command
        kill 9, $$ if getppid != $parent;
    }
    for my $stream (grep { $_->{to} } @streams) {
        open $stream->{number} == 1 ? *STDOUT : *STDERR, '>&', $stream->{to};
        open STDERR, '>&', $stream->{to} if $is_merged;
    }
    run_real();
}
kill $_, $child for splice @early;
$SIG{INT} = $SIG{QUIT} = 'IGNORE' if $has_terminal;
my $pidfd = syscall 434, $child, 0;  # pidfd_open, which has this number on all machines with Linux
my $ended;
open $ended, '<&=', $pidfd or undef $ended if $pidfd > 2;

# This process keeps nothing open that the command may close: others may wait for the end of a pipe.
close $_->{to} for grep { $_->{to} } @streams;
open STDIN, '<', '/dev/null';
for my $stream (@streams) {
    open $stream->{number} == 1 ? *STDOUT : *STDERR, '>', '/dev/null';
}
my %own = map { $_ => 1 } 0, 1, 2, map { fileno $_ } grep { $_ } $connection, $ended, map { @$_{qw(from out file)} } @streams;
if (opendir my $listing, '/proc/self/fd') {
    for my $number (grep { /^\d+\z/ && !$own{$_} } readdir $listing) {
        open my $inherited, '<&=', $number or next;
        close $inherited;
    }
}
chdir '/';

sub keep {
    my ($stream, $data) = @_;
    $stream->{total} += length $data;
    return if !$keep;
    my $space = $keep - length $stream->{head};
    if ($space > 0) {
        $stream->{head} .= substr $data, 0, $space, '';
    }
    if (length $data) {
        $stream->{tail} .= $data;
        $stream->{tail} = substr $stream->{tail}, -$keep if length $stream->{tail} > 4 * $keep;
    }
}

sub finish { my $stream = shift; close $stream->{from}; close $stream->{out}; delete @$stream{qw(from out)} }

# Read at most $limit bytes; they are written later, in `flush`.
sub receive {
    my ($stream, $limit) = @_;
    my $count = sysread $stream->{from}, my $data, $limit;
    return if !defined $count;
    return finish($stream) if $count == 0;
    keep($stream, $data) if !$stream->{is_late};
    $stream->{wait} = $data;
}

# Write what waits, at most $limit bytes. If nobody reads it, the command gets the same error.
sub flush {
    my ($stream, $limit) = @_;
    my $count = syswrite $stream->{out}, $stream->{wait}, $limit;
    if (defined $count) {
        substr $stream->{wait}, 0, $count, '';
    } else {
        my $error = $! + 0;  # EINTR, and EAGAIN of Linux and macOS, are no end
        finish($stream) if $error != 4 && $error != 11 && $error != 35;
    }
}

sub copy {
    my $timeout = shift;
    my ($reads, $writes) = ('', '');
    my @open = grep { $_->{from} } @streams;
    for my $stream (@open) {
        if (length $stream->{wait}) { vec($writes, fileno $stream->{out}, 1) = 1 }
        else { vec($reads, fileno $stream->{from}, 1) = 1 }
    }
    vec($reads, fileno $ended, 1) = 1 if $ended;
    my $found = select $reads, $writes, undef, $timeout;
    return 0 if $found <= 0;
    # A pipe that can be written takes 4096 bytes without blocking; a single stream may block.
    my $most = @open > 1 ? 4096 : 1 << 20;
    for my $stream (@open) {
        if (length $stream->{wait}) {
            flush($stream, $most) if vec $writes, fileno $stream->{out}, 1;
        } elsif (vec $reads, fileno $stream->{from}, 1) {
            receive($stream, 65536);
            flush($stream, $most) if $stream->{from} && @open == 1 && length $stream->{wait};
        }
    }
    return 1;
}

my $status;
while (1) {
    copy($ended ? 0.25 : 0.01);
    if (waitpid($child, 1) == $child) { $status = $?; last }
}
my $duration = clock_ns(1) - $started;

# Write what the command has written, as much as is in the pipe now: its children may write on.
for my $stream (grep { $_->{from} } @streams) {
    my $size = pack 'i', 0;
    my $left = ioctl($stream->{from}, $fionread, $size) ? unpack('i', $size) : 65536;
    while ($stream->{from} && (length $stream->{wait} || $left > 0)) {
        if (length $stream->{wait}) {
            my $writes = '';
            vec($writes, fileno $stream->{out}, 1) = 1;
            select undef, $writes, undef, 1;
            flush($stream, 65536);
        } else {
            receive($stream, $left < 65536 ? $left : 65536);
            last if $stream->{from} && !length $stream->{wait};
            $left -= length $stream->{wait};
        }
    }
}
for my $stream (grep { $_->{file} } @streams) {
    my @found = stat $stream->{file};
    my $size = $found[7] - $stream->{start};
    next if $size <= 0;
    $stream->{total} = $size;
    next if !$keep;
    sysseek $stream->{file}, $stream->{start}, 0;
    sysread $stream->{file}, $stream->{head}, $size < $keep ? $size : $keep;
    my $rest = $size - $keep < $keep ? $size - $keep : $keep;
    if ($rest > 0) {
        sysseek $stream->{file}, $found[7] - $rest, 0;
        sysread $stream->{file}, $stream->{tail}, $rest;
    }
}
report('E', $status >> 8, $status & 127, $clock ? $duration : '', $is_merged ? 1 : 0,
    map { ($_->{total}, $_->{head}, substr($_->{tail}, -$keep)) } @streams);
close $connection;

# A child of the command may still write into the pipe: another process copies that.
my @later;
for my $stream (grep { $_->{from} } @streams) {
    # At the end of a pipe that nobody can write any more, a read returns at once.
    my $reads = '';
    vec($reads, fileno $stream->{from}, 1) = 1;
    if (select($reads, undef, undef, 0) > 0) {
        my $count = sysread $stream->{from}, my $data, 65536;
        if (defined $count && $count == 0) { finish($stream); next }
        $stream->{wait} = $data;
    }
    push @later, $stream;
}
if (@later) {
    my $copier = fork;
    if (defined $copier && $copier == 0) {
        setpgrp 0, 0;
        $SIG{$_} = 'IGNORE' for qw(HUP INT QUIT TERM);
        $_->{is_late} = 1 for @later;
        undef $ended;
        copy(undef) while grep { $_->{from} } @streams;
        exit 0;
    }
}
if (my $signal = $status & 127) {
    syscall $prctl, 4, 0, 0, 0, 0 if $prctl;  # PR_SET_DUMPABLE: the command has dumped its core already
    my @names = split ' ', $signals;
    $SIG{$names[$signal]} = 'DEFAULT' if $names[$signal] && $names[$signal] !~ /KILL|STOP/;
    kill $signal, $$;
    select undef, undef, undef, 1;
    exit 128 + $signal;
}
exit $status >> 8;
