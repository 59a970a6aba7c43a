import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.retry.RetryOneTime;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.recipes.lock.LockListener;
import org.apache.zookeeper.recipes.lock.WriteLock;

/**
 * Takes a lock with one of Curator's recipes or ZooKeeper's own, on commands from stdin. kazoo_peer.py speaks the same
 * protocol.
 *
 * <pre>
 * java -Dclock.offset=NANOSECONDS Peer CONNECT PATH KIND SESSION_MS LOG
 *
 * clock.offset       CLOCK_BOOTTIME minus CLOCK_MONOTONIC, the only one that Java can read
 * KIND               mutex: InterProcessMutex; revocable: the same, which answers asked when it is asked to give up;
 *                    rw-read, rw-write: InterProcessReadWriteLock; write-lock: WriteLock;
 *                    multi-lock: InterProcessMultiLock; selector: LeaderSelector; latch: LeaderLatch; semaphore-mutex:
 *                    InterProcessSemaphoreMutex; semaphore: InterProcessSemaphoreV2 with one lease
 *
 * acquire            answers acquired
 * acquire MS         answers acquired, or busy after MS milliseconds
 * release            answers released
 * revoke NODE        asks a contender to give up; answers done
 * crowd N TURNS      N contenders, each with its own session, take TURNS turns in total; answers done
 * </pre>
 *
 * The first line is `ready SESSION`. A command that fails answers `failed WHY`. At the end of stdin the session is
 * closed. To LOG it writes `begin TIME ID KIND` when it has the lock, `alive` every few milliseconds while it
 * believes that it still has it (in case it is killed), and `end` before it releases. A crowd does not write `alive`.
 *
 * With the variable ZKLOCK_AUTH it logs in.
 */
public final class Peer {
    /** As for zklock: a scheme and what is shown for it; null without one. */
    private static final String[] LOGIN =
            System.getenv("ZKLOCK_AUTH") == null ? null : System.getenv("ZKLOCK_AUTH").split(":", 2);

    /** A way to take the lock, with its own session. */
    private interface Contender extends AutoCloseable {
        /** Waits for the lock, forever if {@code milliseconds} is negative. Returns whether it was acquired. */
        boolean acquire(long milliseconds) throws Exception;

        void release() throws Exception;

        long session() throws Exception;

        /** Asks the contender with this node to give up. */
        void revoke(String node) throws Exception;

        @Override
        void close();
    }

    /** How long a contender of a crowd holds the lock: long enough for a second holder to be noticed. */
    private static final long TURN_MS = 1;

    private static final long BEAT_MS = 3;

    private final String connect;
    private final String path;
    private final String kind;
    private final int sessionTimeout;
    private final long clockOffset = Long.getLong("clock.offset");
    private final FileOutputStream log;
    private boolean holds;

    private Peer(String[] arguments) throws IOException {
        connect = arguments[0];
        path = arguments[1];
        kind = arguments[2];
        sessionTimeout = Integer.parseInt(arguments[3]);
        log = new FileOutputStream(arguments[4], true);
    }

    public static void main(String[] arguments) throws Exception {
        new Peer(arguments).serve();
        // A client that lost its session may have left threads behind that would keep the process alive.
        System.exit(0);
    }

    private void serve() throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (Contender contender = open()) {
            startHeart();
            answer(String.format("ready 0x%x", contender.session()));
            for (String line = commands.readLine(); line != null; line = commands.readLine()) {
                try {
                    answer(obey(contender, line.split(" ")));
                } catch (Exception failure) {
                    answer("failed " + failure);
                }
            }
        }
    }

    private String obey(Contender contender, String[] words) throws Exception {
        switch (words[0]) {
            case "acquire":
                if (!contender.acquire(words.length > 1 ? Long.parseLong(words[1]) : -1)) {
                    return "busy";
                }
                hold(true);
                return "acquired";
            case "release":
                hold(false);
                contender.release();
                return "released";
            case "revoke":
                contender.revoke(words[1]);
                return "done";
            case "crowd":
                crowd(Integer.parseInt(words[1]), Integer.parseInt(words[2]));
                return "done";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static void answer(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private synchronized void hold(boolean begins) throws IOException {
        holds = begins;
        note(begins ? "begin" : "end", ProcessHandle.current().pid());
    }

    private synchronized void beat() throws IOException {
        if (holds) {
            note("alive", ProcessHandle.current().pid());
        }
    }

    private void startHeart() {
        Thread heart = new Thread(() -> {
            try {
                while (true) {
                    beat();
                    Thread.sleep(BEAT_MS);
                }
            } catch (IOException | InterruptedException failure) {
                throw new IllegalStateException(failure);
            }
        });
        heart.setDaemon(true);
        heart.start();
    }

    private void crowd(int size, int turns) throws Exception {
        AtomicInteger left = new AtomicInteger(turns);
        ExecutorService threads = Executors.newFixedThreadPool(size);
        try {
            List<Future<?>> contenders = new ArrayList<>();
            for (int n = 0; n < size; n++) {
                // Process ids are below 2^22 (proc_sys_kernel(5), pid_max). The bits above tell the contenders apart.
                long id = ProcessHandle.current().pid() | (long) n << 22;
                contenders.add(threads.submit(() -> {
                    takeTurns(left, id);
                    return null;
                }));
            }
            for (Future<?> contender : contenders) {
                contender.get();
            }
        } catch (ExecutionException failure) {
            throw failure.getCause() instanceof Exception cause ? cause : failure;
        } finally {
            threads.shutdownNow();
        }
    }

    private void takeTurns(AtomicInteger left, long id) throws Exception {
        try (Contender contender = open()) {
            while (left.getAndDecrement() > 0) {
                contender.acquire(-1);
                note("begin", id);
                Thread.sleep(TURN_MS);
                note("end", id);
                contender.release();
            }
        }
    }

    private void note(String word, long id) throws IOException {
        long now = System.nanoTime() + clockOffset;
        // A single write, so that lines of several processes are not mixed up.
        log.write(String.format("%s %d %d %s\n", word, now, id, kind).getBytes(StandardCharsets.UTF_8));
    }

    private Contender open() throws Exception {
        return kind.equals("write-lock") ? new Recipe() : new Curator();
    }

    /** A lock that a recipe of Curator's has acquired, until it is released. */
    private interface Turn {
        void end() throws Exception;
    }

    /** A recipe of Curator's. */
    private interface Turns {
        /** Like {@link Contender#acquire}; null if the lock was not acquired. */
        Turn take(long milliseconds) throws Exception;
    }

    private final class Curator implements Contender {
        private final CuratorFramework client;
        private final Turns turns;
        private Turn turn;

        Curator() throws Exception {
            int patience = 15_000;
            CuratorFrameworkFactory.Builder builder =
                    CuratorFrameworkFactory.builder()
                            .connectString(connect)
                            .sessionTimeoutMs(sessionTimeout)
                            .connectionTimeoutMs(patience)
                            .retryPolicy(new RetryOneTime(100));
            if (LOGIN != null) {
                builder.authorization(LOGIN[0], LOGIN[1].getBytes(StandardCharsets.UTF_8));
            }
            client = builder.build();
            client.start();
            client.blockUntilConnected(patience, TimeUnit.MILLISECONDS);
            turns = switch (kind) {
                case "mutex" -> turns(new InterProcessMutex(client, path));
                case "revocable" -> turns(revocable(new InterProcessMutex(client, path)));
                case "rw-read" -> turns(new InterProcessReadWriteLock(client, path).readLock());
                case "rw-write" -> turns(new InterProcessReadWriteLock(client, path).writeLock());
                case "multi-lock" -> turns(new InterProcessMultiLock(client, List.of(path)));
                case "semaphore-mutex" -> turns(new InterProcessSemaphoreMutex(client, path));
                case "semaphore" -> turns(new InterProcessSemaphoreV2(client, path, 1));
                case "latch" -> milliseconds -> lead(new LeaderLatch(client, path), milliseconds);
                case "selector" -> this::select;
                default -> throw new IllegalArgumentException(kind);
            };
        }

        private static InterProcessMutex revocable(InterProcessMutex lock) {
            lock.makeRevocable(asked -> answer("asked"));
            return lock;
        }

        private static Turns turns(InterProcessLock lock) {
            return milliseconds -> {
                if (milliseconds < 0) {
                    lock.acquire();
                    return lock::release;
                }
                return lock.acquire(milliseconds, TimeUnit.MILLISECONDS) ? lock::release : null;
            };
        }

        private static Turns turns(InterProcessSemaphoreV2 semaphore) {
            return milliseconds -> {
                Lease lease = semaphore.acquire(limit(milliseconds), TimeUnit.MILLISECONDS);
                return lease == null ? null : lease::close;
            };
        }

        private static Turn lead(LeaderLatch latch, long milliseconds) throws Exception {
            latch.start();
            if (latch.await(limit(milliseconds), TimeUnit.MILLISECONDS)) {
                return latch::close;
            }
            latch.close();
            return null;
        }

        private Turn select(long milliseconds) throws Exception {
            CountDownLatch leads = new CountDownLatch(1);
            LeaderSelector selector = new LeaderSelector(client, path, new LeaderSelectorListenerAdapter() {
                @Override
                public void takeLeadership(CuratorFramework client) throws InterruptedException {
                    leads.countDown();
                    // Leads until the selector is closed.
                    new CountDownLatch(1).await();
                }
            });
            selector.start();
            if (leads.await(limit(milliseconds), TimeUnit.MILLISECONDS)) {
                return selector::close;
            }
            selector.close();
            return null;
        }

        private static long limit(long milliseconds) {
            return milliseconds < 0 ? Long.MAX_VALUE / 1_000_000 : milliseconds;
        }

        @Override
        public boolean acquire(long milliseconds) throws Exception {
            turn = turns.take(milliseconds);
            return turn != null;
        }

        @Override
        public void release() throws Exception {
            turn.end();
        }

        @Override
        public long session() throws Exception {
            return client.getZookeeperClient().getZooKeeper().getSessionId();
        }

        @Override
        public void revoke(String node) throws Exception {
            Revoker.attemptRevoke(client, node);
        }

        @Override
        public void close() {
            client.close();
        }
    }

    private final class Recipe implements Contender, LockListener {
        /** How long to wait for the listener before the recipe is asked again. */
        private static final long STEP_MS = 20;

        private final Semaphore acquired = new Semaphore(0);
        private final ZooKeeper client;
        private WriteLock lock;

        Recipe() throws Exception {
            Semaphore connected = new Semaphore(0);
            client = new ZooKeeper(connect, sessionTimeout, event -> connected.release());
            connected.acquire();
            if (LOGIN != null) {
                client.addAuthInfo(LOGIN[0], LOGIN[1].getBytes(StandardCharsets.UTF_8));
            }
        }

        @Override
        public boolean acquire(long milliseconds) throws Exception {
            long start = System.nanoTime();
            acquired.drainPermits();
            // A WriteLock whose watch fires after its release takes the lock again, unless it is closed. So each turn
            // has a new one.
            lock = new WriteLock(client, path, ZooDefs.Ids.OPEN_ACL_UNSAFE, this);
            // A WriteLock waits forever if its predecessor disappears after the list and before the watch. So it is
            // asked again.
            while (!lock.lock()) {
                if (milliseconds >= 0 && System.nanoTime() - start > TimeUnit.MILLISECONDS.toNanos(milliseconds)) {
                    release();
                    return false;
                }
                acquired.tryAcquire(STEP_MS, TimeUnit.MILLISECONDS);
            }
            return true;
        }

        @Override
        public void release() {
            // Closing it does not delete its node, so it is unlocked first. No watch may fire between the two.
            synchronized (lock) {
                lock.unlock();
                lock.close();
            }
        }

        @Override
        public long session() {
            return client.getSessionId();
        }

        @Override
        public void revoke(String node) {
            throw new UnsupportedOperationException();
        }

        @Override
        public void close() {
            try {
                client.close();
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }

        @Override
        public void lockAcquired() {
            acquired.release();
        }

        @Override
        public void lockReleased() {}
    }
}
