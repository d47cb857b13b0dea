{{/* Labels of every object. Those of pods do not change with the chart's version: that would restart them. */}}
{{- define "kaa.labels" -}}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The labels of the admin pods, as in manifests/base. A namespace has one set of admin servers, so they do not name the release. */}}
{{- define "kaa.admin.selector" -}}
app.kubernetes.io/name: kaa
app.kubernetes.io/component: admin
{{- end }}

{{- define "kaa.admin.labels" -}}
{{ include "kaa.admin.selector" . }}
{{ include "kaa.labels" . }}
{{- end }}

{{- define "kaa.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* "-" stands for no class, as in other charts. */}}
{{- define "kaa.storageClass" -}}
{{- with . }}
storageClassName: {{ ternary "" . (eq . "-") | quote }}
{{- end }}
{{- end }}

{{- define "kaa.tls.secret" -}}
{{ .Values.tls.secretName | default (printf "%s-tls" .Values.admin.name) }}
{{- end }}

{{/* Where the agents are reached: one by one, and through the Services. The engines use the first name. */}}
{{- define "kaa.tls.names" -}}
{{- $service := .Values.admin.name }}
{{- $suffix := printf "%s.svc" .Release.Namespace }}
- {{ $service }}
- {{ $service }}.{{ $suffix }}
- {{ $service }}-api
- {{ $service }}-api.{{ $suffix }}
- "*.{{ $service }}.{{ $suffix }}"
{{- with .Values.cloud.cluster.domain }}
- "*.{{ $service }}.{{ $suffix }}.{{ . }}"
{{- end }}
{{- range .Values.tls.dnsNames }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "kaa.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Where pods may run, as an admin or engine pod has it in its values. */}}
{{- define "kaa.scheduling" -}}
{{- range $field := list "nodeSelector" "tolerations" "affinity" "priorityClassName" }}
{{- with index $ $field }}
{{ $field }}: {{- if kindIs "string" . }} {{ . }}{{ else }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* An item of a list, with a value for a key that it does not have: item, key, value. (`merge` would change what it has.) */}}
{{- define "kaa.with" -}}
{{- $item := deepCopy (index . 0) }}
{{- if not (hasKey $item (index . 1)) }}{{ $_ := set $item (index . 1) (index . 2) }}{{ end }}
{{- list $item | toYaml }}
{{- end }}

{{/* The agents' settings for a domain of several clusters: the only place that names them. */}}
{{- define "kaa.cluster.env" -}}
{{- with .Values.cloud.cluster }}
{{- if ne .name "default" }}
- name: KAA_CLUSTER
  value: {{ .name | quote }}
{{- end }}
{{- if and .entrypointName (ne .entrypointName .name) }}
- name: KAA_ENTRYPOINT_CLUSTER
  value: {{ .entrypointName | quote }}
- name: KAA_ENTRYPOINT
  value: {{ join "," .entrypoint | quote }}
{{- end }}
{{- if .domain }}
- name: KAA_ADDRESS_SUFFIX
  value: .{{ $.Release.Namespace }}.svc.{{ .domain }}
{{- end }}
{{- end }}
{{- end }}

{{/* Not empty in the cluster whose annotations count for the domain. */}}
{{- define "kaa.isEntrypoint" -}}
{{- with .Values.cloud.cluster }}
{{- if or (not .entrypointName) (eq .entrypointName .name) }}true{{ end }}
{{- end }}
{{- end }}

{{/* Refuses what would fail later, and with a worse message. */}}
{{- define "kaa.check" -}}
{{- if not (or .Values.admin.enabled .Values.database.enabled .Values.postgres.enabled) }}
{{- fail "nothing to install: admin.enabled, database.enabled and postgres.enabled are false" }}
{{- end }}
{{- if and .Values.postgres.enabled .Values.database.enabled (eq .Values.postgres.name .Values.database.name) }}
{{- fail (printf "postgres.name and database.name are both %s: databases of a domain have different names" .Values.postgres.name) }}
{{- end }}
{{- if and .Values.database.enabled (not .Values.database.primaryRelease) (not .Values.database.fullnameOverride) }}
{{- fail "database.primaryRelease=false needs database.fullnameOverride: the names of the workloads would be those of the primary release" }}
{{- end }}
{{- if and .Values.admin.enabled (not (include "kaa.isEntrypoint" .)) (not .Values.cloud.cluster.entrypoint) }}
{{- fail (printf "cloud.cluster.entrypoint is empty: it has to name agents of the cluster %s (cloud.cluster.entrypointName), HOST:PORT" .Values.cloud.cluster.entrypointName) }}
{{- end }}
{{- $release := dict "name" .Release.Name "namespace" .Release.Namespace }}
{{- if .Values.admin.enabled }}
{{- $owner := include "kaa.owner" (merge (dict "kind" "StatefulSet" "api" "apps/v1" "object" .Values.admin.name) $release) }}
{{- if $owner }}
{{- fail (printf "the namespace %s has admin servers already: StatefulSet %s, %s. For a further database: --set admin.enabled=false. For further admin servers: another namespace" .Release.Namespace .Values.admin.name $owner) }}
{{- end }}
{{- range (lookup "apps/v1" "StatefulSet" .Release.Namespace "").items }}
{{- $name := .metadata.name }}
{{- if and (ne $name $.Values.admin.name) (include "kaa.isAdmin" .) }}
{{- $owner := include "kaa.owner" (merge (dict "kind" "StatefulSet" "api" "apps/v1" "object" $name) $release) }}
{{- if $owner }}
{{- fail (printf "the namespace %s has admin servers already: StatefulSet %s, %s. For a further database: --set admin.enabled=false,admin.name=%s. For further admin servers: another namespace" $.Release.Namespace $name $owner $name) }}
{{- end }}
{{- fail (printf "admin.name cannot be changed: servers named %s would have empty volumes, and the domain of %s would have no quorum. Set admin.name=%s" $.Values.admin.name $name $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.admin.enabled (eq .Values.tls.source "chart") }}
{{- $secret := include "kaa.tls.secret" . }}
{{- $owner := include "kaa.owner" (merge (dict "kind" "Secret" "api" "v1" "object" $secret) $release) }}
{{- if $owner }}
{{- fail (printf "the Secret %s exists: %s. To use it: --set tls.source=secret. To have the chart create another one: --set tls.secretName=NAME" $secret $owner) }}
{{- end }}
{{- end }}
{{- if and .Values.admin.enabled (eq .Values.tls.source "secret") }}
{{- $secret := include "kaa.tls.secret" . }}
{{- $found := lookup "v1" "Secret" .Release.Namespace $secret }}
{{- if eq .Release.Name (dig "metadata" "annotations" "meta.helm.sh/release-name" "" $found) }}
{{- fail (printf "tls.source=secret: helm would delete the Secret %s, which this release has created. Create yours under another name, and --set tls.secretName=NAME" $secret) }}
{{- end }}
{{- /* Pods restart one by one, and those with the old CA and those with another one refuse each other: no one becomes ready. */}}
{{- $own := lookup "v1" "Secret" .Release.Namespace (printf "%s-ca" .Values.admin.name) }}
{{- if and $found (eq .Release.Name (dig "metadata" "annotations" "meta.helm.sh/release-name" "" $own)) }}
{{- if not (contains (index $own.data "tls.crt" | b64dec | trim) (dig "data" "ca.crt" "" $found | b64dec)) }}
{{- fail (printf "tls.source=secret: the ca.crt of the Secret %s lacks the CA that the agents use now. Begin with both CAs in ca.crt, and with the present tls.crt and tls.key: README.md, Certificates of your own" $secret) }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.database.enabled }}
{{- $name := printf "sm-%s" (include "kaa.database.fullname" .) }}
{{- $owner := include "kaa.owner" (merge (dict "kind" "StatefulSet" "api" "apps/v1" "object" $name) $release) }}
{{- if $owner }}
{{- fail (printf "StatefulSet %s exists: %s. For another database: --set database.name=NAME. For the admin servers alone: --set database.enabled=false" $name $owner) }}
{{- end }}
{{- end }}
{{- if .Values.postgres.enabled }}
{{- $owner := include "kaa.owner" (merge (dict "kind" "StatefulSet" "api" "apps/v1" "object" .Values.postgres.name) $release) }}
{{- if $owner }}
{{- fail (printf "StatefulSet %s exists: %s. For another database: --set postgres.name=NAME" .Values.postgres.name $owner) }}
{{- end }}
{{- if not .Values.postgres.applicationSecret }}
{{- $user := .Values.postgres.application.username | default .Values.postgres.name }}
{{- $replication := "replication" }}
{{- with .Values.postgres.replicationSecret }}
{{- $replication = lookup "v1" "Secret" $.Release.Namespace . | dig "data" "username" "" | b64dec | trim }}
{{- end }}
{{- if or (has $user (list "kaa" "public" "none")) (hasPrefix "pg_" $user) }}
{{- fail (printf "the application's role cannot be named %s, which is a reserved name: --set postgres.application.username=NAME" $user) }}
{{- end }}
{{- if eq $user $replication }}
{{- fail (printf "the application's role cannot be named %s, which is the replication role: --set postgres.application.username=NAME" $user) }}
{{- end }}
{{- $dbname := .Values.postgres.application.dbname | default .Values.postgres.name }}
{{- if has $dbname (list "postgres" "template0" "template1") }}
{{- fail (printf "the application's database cannot be named %s, which every server has already: --set postgres.application.dbname=NAME" $dbname) }}
{{- end }}
{{- end }}
{{- range $value := list "applicationSecret" "replicationSecret" }}
{{- with index $.Values.postgres $value }}
{{- $found := lookup "v1" "Secret" $.Release.Namespace . }}
{{- /* A chart that has this one as a part may make Secrets in the same release: they have no label of a database. */}}
{{- $owner := dig "metadata" "annotations" "meta.helm.sh/release-name" "" $found }}
{{- if and (eq $.Release.Name $owner) (dig "metadata" "labels" "database" "" $found) }}
{{- fail (printf "postgres.%s=%s: helm would delete this Secret, which this release has created. Create yours under another name" $value .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "kaa.postgres.labels" -}}
database: {{ .Values.postgres.name | quote }}
{{ include "kaa.labels" . }}
{{- end }}

{{/* Not empty for a StatefulSet that the agents and the Services take for one of admin servers. */}}
{{- define "kaa.isAdmin" -}}
{{- $labels := dig "spec" "template" "metadata" "labels" (dict) . }}
{{- if and (eq "kaa" (get $labels "app.kubernetes.io/name")) (eq "admin" (get $labels "app.kubernetes.io/component")) }}true{{ end }}
{{- range dig "spec" "volumeClaimTemplates" (list) . }}
{{- if eq "raftlog" (dig "metadata" "name" "" .) }}true{{ end }}
{{- end }}
{{- end }}

{{/* Whose an object is, if it exists and is not of this release. */}}
{{- define "kaa.owner" -}}
{{- $found := lookup .api .kind .namespace .object }}
{{- if $found }}
{{- $owner := dig "annotations" "meta.helm.sh/release-name" "" $found.metadata }}
{{- if not $owner }}of no helm release{{ else if ne $owner .name }}of the release {{ $owner }}{{ end }}
{{- end }}
{{- end }}

{{- define "kaa.database.fullname" -}}
{{ .Values.database.fullnameOverride | default .Values.database.name }}
{{- end }}
