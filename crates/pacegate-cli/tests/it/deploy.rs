//! The files in `deploy/` are valid for the programs that read them.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use pacegate_testkit::servers::Envoy;
use serde_json::Value;

/// Metrics with these names exist; a panel with another name would be empty.
const METRICS: [&str; 15] = [
    "pacegate_build_info",
    "pacegate_config_last_reload_success",
    "pacegate_config_reload_failures_total",
    "pacegate_config_revision",
    "pacegate_connections",
    "pacegate_connections_refused_total",
    "pacegate_decisions_total",
    "pacegate_degraded_total",
    "pacegate_request_duration_seconds_bucket",
    "pacegate_requests_total",
    "pacegate_store_bytes",
    "pacegate_store_failures_total",
    "pacegate_store_keys",
    "pacegate_store_max_keys",
    "pacegate_store_overflowed_total",
];

#[test]
fn the_dashboard_uses_exactly_the_existing_metrics() {
    let dashboard: Value = serde_json::from_str(&read("grafana/pacegate.json")).unwrap();
    let mut asked = BTreeSet::new();
    expressions(&dashboard, &mut asked);
    assert_eq!(asked, METRICS.map(str::to_owned).into());
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "two panels have one id");
}

#[test]
fn the_manifests_are_consistent() {
    let names = ["configmap", "deployment", "service", "poddisruptionbudget", "networkpolicy"];
    let kinds = names.map(|name| {
        let manifest = yaml(&read(&format!("kubernetes/{name}.yaml")));
        assert_eq!(manifest["metadata"]["name"], "pacegate");
        manifest["kind"].as_str().unwrap().to_owned()
    });
    let expected = ["ConfigMap", "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"];
    assert_eq!(kinds, expected);
    let listed = yaml(&read("kubernetes/kustomization.yaml"));
    let listed = listed["resources"].as_array().unwrap();
    assert_eq!(listed, &names.map(|name| Value::from(format!("{name}.yaml"))));

    let deployment = yaml(&read("kubernetes/deployment.yaml"));
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/healthz");
    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz");

    // Every file in the configuration is in a mounted folder.
    let config = yaml(&read("kubernetes/configmap.yaml"));
    let config = yaml(config["data"]["pacegate.yaml"].as_str().unwrap());
    let mounts = container["volumeMounts"].as_array().unwrap();
    for file in [
        &config["store"]["url_file"],
        &config["tls"]["certificate"],
        &config["tls"]["key"],
        &config["keys"][0]["file"],
    ] {
        let folder = Path::new(file.as_str().unwrap()).parent().unwrap().to_str().unwrap();
        assert!(mounts.iter().any(|mount| mount["mountPath"] == folder), "{file} is not mounted");
    }
}

#[test]
fn the_network_policy_covers_the_pods_and_their_ports() {
    let policy = &yaml(&read("kubernetes/networkpolicy.yaml"))["spec"];
    assert_eq!(policy["policyTypes"], serde_json::json!(["Ingress", "Egress"]));
    let kustomization = yaml(&read("kubernetes/kustomization.yaml"));
    let label = &kustomization["labels"][0]["pairs"];
    assert_eq!(&policy["podSelector"]["matchLabels"], label);
    let deployment = yaml(&read("kubernetes/deployment.yaml"));
    let ports = &deployment["spec"]["template"]["spec"]["containers"][0]["ports"];
    let names: Vec<_> = ports.as_array().unwrap().iter().map(|port| &port["name"]).collect();
    let open = policy["ingress"][0]["ports"].as_array().unwrap();
    assert_eq!(open.iter().map(|port| &port["port"]).collect::<Vec<_>>(), names);
    // Kustomize would add its label to other pods' `matchLabels`.
    for (way, end) in [("ingress", "from"), ("egress", "to")] {
        for peer in policy[way].as_array().unwrap().iter().flat_map(|rule| rule[end].as_array()) {
            for selector in peer.iter().map(|peer| &peer["podSelector"]) {
                assert!(selector["matchLabels"].is_null(), "{selector}");
            }
        }
    }
}

/// Without one of its members, Cargo builds nothing.
#[test]
fn images_are_built_from_all_members_of_the_workspace() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = [")).unwrap();
    let members: Vec<&str> = members.split('"').skip(1).step_by(2).collect();
    assert!(members.contains(&"crates/*"), "{members:?}");
    for ignored in read("docker/Dockerfile.dockerignore").lines() {
        let is_part = |member: &&&str| member.split('/').next() == ignored.split('/').next();
        assert_eq!(members.iter().find(is_part), None, "{ignored} is ignored");
    }
}

#[test]
fn base_images_can_be_pinned_by_digest() {
    let file = read("docker/Dockerfile");
    let images: Vec<_> = file.lines().filter_map(|line| line.strip_prefix("ARG ")).collect();
    let names = images.iter().map(|image| image.split('=').next().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["RUST_IMAGE", "BASE_IMAGE"]);
    let others = ["${RUST_IMAGE}", "${BASE_IMAGE}", "base"];
    let bases = file.lines().filter_map(|line| line.strip_prefix("FROM "));
    for base in bases.map(|line| line.split(' ').next().unwrap()) {
        assert!(others.contains(&base), "{base} is not an argument");
    }
    // A script that prints one digest replaces docker.
    let folder = tempfile::tempdir().unwrap();
    let docker = folder.path().join("docker");
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    fs::write(&docker, format!("#!/bin/sh\necho {digest}\n")).unwrap();
    fs::set_permissions(&docker, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let pin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/docker/pin");
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    let output = Command::new(pin).env("PATH", path).output().unwrap();
    let arguments = String::from_utf8(output.stdout).unwrap();
    let expected = images.iter().map(|image| format!("--build-arg {image}@{digest} "));
    assert_eq!(arguments.trim_end(), expected.collect::<String>().trim_end());
}

#[test]
fn the_services_of_the_composition_find_each_other() {
    let compose = yaml(&read("compose/compose.yaml"));
    let services = compose["services"].as_object().unwrap();
    let names: Vec<_> = services.keys().map(String::as_str).collect();
    assert_eq!(BTreeSet::from_iter(names), ["envoy", "pacegate", "upstream", "valkey"].into());
    let config = yaml(&read("compose/pacegate/pacegate.yaml"));
    assert_eq!(config["store"], "redis://valkey:6379");

    let envoy = yaml(&read("compose/envoy.yaml"));
    let clusters = envoy["static_resources"]["clusters"].as_array().unwrap();
    for (cluster, address) in clusters.iter().zip([("upstream", 80), ("pacegate", 8081)]) {
        let endpoint = &cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"];
        let socket = &endpoint["address"]["socket_address"];
        assert_eq!(socket["address"], address.0);
        assert_eq!(socket["port_value"], address.1);
    }
    assert_eq!(config["listen"]["grpc"], "0.0.0.0:8081");
}

#[test]
fn envoy_accepts_the_example_configuration() {
    let config = read("compose/envoy.yaml");
    let listener = "address: 0.0.0.0, port_value: 10000";
    assert_eq!(config.matches(listener).count(), 1);
    Envoy::start(|port, admin| {
        let own = config.replace(listener, &format!("address: 127.0.0.1, port_value: {port}"));
        format!(
            "admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {admin} }} }} }}\n{own}"
        )
    });
}

#[test]
fn only_the_ratelimit_image_is_insecure() {
    let file = read("docker/Dockerfile");
    let stages: Vec<&str> = file.split("\nFROM ").skip(1).collect();
    let names: Vec<&str> =
        stages.iter().map(|stage| stage.split_whitespace().nth(2).unwrap()).collect();
    // The last stage is built by default.
    assert_eq!(names, ["build", "base", "ratelimit", "pacegate"]);
    let open: Vec<&str> = names
        .into_iter()
        .zip(&stages)
        .filter(|(_, stage)| stage.contains("\nENV PACEGATE_INSECURE=true\n"))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(open, ["ratelimit"]);
    assert_eq!(file.matches("INSECURE").count(), 1);
}

/// Skipped on machines without systemd.
#[test]
fn systemd_accepts_the_unit() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // systemd checks that the program exists.
    let program = env!("CARGO_BIN_EXE_pacegate");
    for file in ["pacegate.service", "pacegate.service.d/keys.conf"] {
        let unit = read(&format!("systemd/{file}")).replace("/usr/bin/pacegate", program);
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, unit).unwrap();
    }
    let verify = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .arg(folder.path().join("pacegate.service"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&verify.stderr);
    assert!(verify.status.success() && said.is_empty(), "{said}");
}

/// Adds the names of our metrics in all expressions of a dashboard.
fn expressions(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if let ("expr" | "definition", Value::String(text)) = (&**name, value) {
                    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
                    found.extend(words.filter(|it| it.starts_with("pacegate_")).map(str::to_owned));
                }
                expressions(value, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

fn read(path: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path);
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}
