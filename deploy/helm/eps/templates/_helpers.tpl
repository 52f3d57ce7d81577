{{- define "eps.labels" -}}
app.kubernetes.io/name: eps
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* Labels of an object. They change with the chart, so no selector may use them. */ -}}
{{- define "eps.objectLabels" -}}
{{ include "eps.labels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "eps.serverImage" -}}
{{ .Values.image.registry }}{{ .Values.image.server }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "eps.workerImage" -}}
{{- $name := .Values.image.worker -}}
{{- if .Values.workers.gpu }}{{ $name = .Values.image.cudaWorker }}{{ end -}}
{{ .Values.image.registry }}{{ $name }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- /* The names of all servers, as a list, in the order of their shards. */ -}}
{{- define "eps.hosts" -}}
{{- $name := printf "%s-servers" .Release.Name -}}
{{- range $i := until (int .Values.servers.replicas) }}
- {{ $name }}-{{ $i }}.{{ $name }}
{{- end }}
{{- end -}}

{{- /* Their addresses. */ -}}
{{- define "eps.addresses" -}}
{{- range $i, $host := include "eps.hosts" . | fromYamlArray -}}
{{- if $i }},{{ end }}{{ $host }}:50151
{{- end -}}
{{- end -}}

{{- /* A size such as 4Gi in MiB. */ -}}
{{- define "eps.mebibytes" -}}
{{- $number := regexFind "^[0-9]+" . | int64 -}}
{{- if hasSuffix "Ti" . }}{{ mul $number 1048576 }}{{ else if hasSuffix "Gi" . }}{{ mul $number 1024 }}
{{- else }}{{ $number }}{{ end -}}
{{- end -}}

{{- /* Seconds that a server may take to start: it reads its state twice, once to check it. */ -}}
{{- define "eps.startSeconds" -}}
{{- $state := include "eps.mebibytes" .Values.servers.stateSize | int64 -}}
{{- $rate := include "eps.mebibytes" .Values.servers.diskRate | int64 -}}
{{ add 60 (div (add (mul 2 $state) (sub $rate 1)) $rate) }}
{{- end -}}

{{- define "eps.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "eps.containerSecurity" -}}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Certificates. Call tlsVolume with a list of the context and the role. */ -}}
{{- define "eps.tlsArguments" -}}
- --security.dir=/etc/eps-tls
- --security.trust_domain={{ .Values.tls.trustDomain }}
{{- end -}}

{{- define "eps.tlsMount" -}}
- name: tls
  mountPath: /etc/eps-tls
  readOnly: true
{{- end -}}

{{- define "eps.tlsVolume" -}}
- name: tls
  secret:
    secretName: {{ (index . 0).Release.Name }}-{{ index . 1 }}-tls
    defaultMode: 0440
{{- end -}}

{{- /* Settings by key, as arguments. A number of a YAML file is a float64. */ -}}
{{- define "eps.arguments" -}}
{{- range $key, $value := . }}
{{- if kindIs "float64" $value }}
- --{{ $key }}={{ printf "%.0f" $value }}
{{- else }}
- --{{ $key }}={{ $value }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* An optimizer of one's own, for servers and driver. */ -}}
{{- define "eps.updaterArguments" -}}
{{- if .Values.updater.configMap }}
- --optimizer.plugin=/etc/eps-updater/updater.so
{{- end }}
{{- end -}}

{{- define "eps.updaterMount" -}}
{{- if .Values.updater.configMap }}
- name: updater
  mountPath: /etc/eps-updater
  readOnly: true
{{- end }}
{{- end -}}

{{- define "eps.updaterVolume" -}}
{{- with .Values.updater.configMap }}
- name: updater
  configMap:
    name: {{ . }}
    items: [{key: updater.so, path: updater.so}]
{{- end }}
{{- end -}}

{{- /* A codec of one's own, for servers, driver and workers. */ -}}
{{- define "eps.codecArguments" -}}
{{- if .Values.codec.configMap }}
- --quantization.plugin=/etc/eps-codec/codec.so
{{- end }}
{{- end -}}

{{- define "eps.codecMount" -}}
{{- if .Values.codec.configMap }}
- name: codec
  mountPath: /etc/eps-codec
  readOnly: true
{{- end }}
{{- end -}}

{{- define "eps.codecVolume" -}}
{{- with .Values.codec.configMap }}
- name: codec
  configMap:
    name: {{ . }}
    items: [{key: codec.so, path: codec.so}]
{{- end }}
{{- end -}}

{{- /* What driver and workers read. */ -}}
{{- define "eps.dataMounts" -}}
- name: files
  mountPath: /etc/eps
  readOnly: true
{{- if .Values.data.claim }}
- name: data
  mountPath: /data
  readOnly: true
{{- end }}
- name: tmp
  mountPath: /tmp
{{- end -}}

{{- define "eps.dataVolumes" -}}
- name: files
  configMap:
    name: {{ .Release.Name }}-files
{{- if .Values.data.claim }}
- name: data
  persistentVolumeClaim:
    claimName: {{ .Values.data.claim }}
    readOnly: true
{{- end }}
- name: tmp
  emptyDir: {medium: Memory, sizeLimit: 64Mi}
{{- end -}}

{{- define "eps.filesDigest" -}}
{{ toJson .Values.files | sha256sum | trunc 16 | quote }}
{{- end -}}
