import java.util.Arrays;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/** {@code CuratorLock HOST:PORT LOCK COMMAND...} runs COMMAND under an InterProcessMutex, as a wrapper in Java would. */
public final class CuratorLock {
    public static void main(String[] arguments) throws Exception {
        int status;
        try (CuratorFramework client = CuratorFrameworkFactory.newClient(arguments[0], 30_000, 15_000, new RetryOneTime(100))) {
            client.start();
            InterProcessMutex lock = new InterProcessMutex(client, arguments[1]);
            lock.acquire();
            try {
                status = new ProcessBuilder(Arrays.asList(arguments).subList(2, arguments.length)).inheritIO().start().waitFor();
            } finally {
                lock.release();
            }
        }
        System.exit(status);
    }
}
