"""Writes a JSON schema for each object of the Kubernetes API, from the swagger.json of its sources,
or for the object of a CustomResourceDefinition (needs python3-yaml).

    api_schemas.py SWAGGER_JSON FOLDER
    api_schemas.py DEFINITION_YAML FOLDER

The files are named as kubeconform looks for them: KIND-GROUP-VERSION.json. Objects take only fields
that the API names."""

import json
import pathlib
import sys

DEFINITIONS = "_definitions.json"
# Texts or numbers, which swagger calls texts.
EITHER = {"io.k8s.apimachinery.pkg.api.resource.Quantity": ["string", "number"],
          "io.k8s.apimachinery.pkg.util.intstr.IntOrString": ["string", "integer"]}


def closed(node):
    """Returns a schema whose references lead to DEFINITIONS and whose objects are closed."""
    if isinstance(node, list):
        return [closed(each) for each in node]
    if not isinstance(node, dict):
        return node
    result = {key: closed(value) for key, value in node.items() if not key.startswith("x-")}
    reference = node.get("$ref")
    if isinstance(reference, str):
        result["$ref"] = DEFINITIONS + reference
    if isinstance(node.get("properties"), dict):
        result.setdefault("additionalProperties", False)
    return result


def schema_path(folder, kind, group, version):
    parts = [kind, group.split(".")[0], version]
    return folder / ("-".join(part for part in parts if part).lower() + ".json")


def write_custom(definition, folder):
    import yaml  # pylint: disable=import-outside-toplevel
    spec = yaml.safe_load(definition)["spec"]
    for version in spec["versions"]:
        path = schema_path(folder, spec["names"]["kind"], spec["group"], version["name"])
        path.write_text(json.dumps(closed(version["schema"]["openAPIV3Schema"])),
                        encoding="utf-8")


def write_api(swagger, folder):
    definitions = json.loads(swagger)["definitions"]
    schemas = {name: {"type": EITHER[name]} if name in EITHER else closed(schema)
               for name, schema in definitions.items()}
    (folder / DEFINITIONS).write_text(json.dumps({"definitions": schemas}), encoding="utf-8")
    for name, schema in definitions.items():
        for kind in schema.get("x-kubernetes-group-version-kind", []):
            path = schema_path(folder, kind["kind"], kind["group"], kind["version"])
            path.write_text(json.dumps({"$ref": f"{DEFINITIONS}#/definitions/{name}"}),
                            encoding="utf-8")


def main(source, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    text = pathlib.Path(source).read_text(encoding="utf-8")
    (write_api if source.endswith(".json") else write_custom)(text, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
