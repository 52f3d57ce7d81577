"""Writes a JSON schema for each object of the Kubernetes API, from the swagger.json of its sources.

    api_schemas.py SWAGGER_JSON FOLDER

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


def main(swagger, folder):
    definitions = json.loads(pathlib.Path(swagger).read_text(encoding="utf-8"))["definitions"]
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    schemas = {name: {"type": EITHER[name]} if name in EITHER else closed(schema)
               for name, schema in definitions.items()}
    (folder / DEFINITIONS).write_text(json.dumps({"definitions": schemas}), encoding="utf-8")
    for name, schema in definitions.items():
        for kind in schema.get("x-kubernetes-group-version-kind", []):
            group = kind["group"].split(".")[0]
            parts = [kind["kind"], group, kind["version"]]
            path = folder / ("-".join(part for part in parts if part).lower() + ".json")
            path.write_text(json.dumps({"$ref": f"{DEFINITIONS}#/definitions/{name}"}),
                            encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
