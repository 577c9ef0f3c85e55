import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/** Runs a resource manager and one node manager, and writes their settings to a file once both are up. */
public final class MiniYarn {
    public static void main(String[] arguments) throws Exception {
        YarnConfiguration conf = new YarnConfiguration();
        // Settings come as key=value, the file of the results first.
        for (int i = 1; i < arguments.length; i++) {
            String[] parts = arguments[i].split("=", 2);
            conf.set(parts[0], parts[1]);
        }
        MiniYARNCluster cluster = new MiniYARNCluster("yarn", 1, 1, 1);
        try {
            cluster.init(conf);
            cluster.start();
        } catch (RuntimeException error) {
            error.printStackTrace();
            // Its threads would keep the process alive.
            System.exit(1);
        }
        Path draft = Path.of(arguments[0] + ".draft");
        try (OutputStream out = Files.newOutputStream(draft)) {
            cluster.getConfig().writeXml(out);
        }
        Files.move(draft, Path.of(arguments[0]));
        Thread.currentThread().join();
    }
}
